"""gdb: prints Tensor, DTensor and Parameter of sherd with device, shape, placements and first values.

gdb loads it with libsherd.so of the package libsherd-dev; elsewhere: gdb -x packaging/gdb/sherd.py PROGRAM.
The program needs debug information (-g), the library does not. Kernels run later than the call that queues them: wait for
the stream before values are read. The values of a Parameter are read by a call of Parameter::dtensor() in the program.
"""

import re
import struct

import gdb
import gdb.printing

COUNT = 6  # values that are printed
FORMATS = {"f32": "f", "f64": "d", "i32": "i", "i64": "q", "u8": "B", "f16": "e", "bf16": "H"}


def items(vector):
    """Elements of a std::vector."""
    first, last = vector["_M_impl"]["_M_start"], vector["_M_impl"]["_M_finish"]
    return [first[i] for i in range(int(last - first))]


def dims(shape):
    return "[" + ", ".join(str(int(n)) for n in items(shape)) + "]"


def shared(pointer):
    return pointer["_M_ptr"]


def device(storage):
    """Kind of a tensor's device: the name of its class, where the library has symbols; the first member of a Storage."""
    address = storage.cast(gdb.lookup_type("unsigned long").pointer().pointer())[0]
    symbol = gdb.execute(f"info symbol {int(address[0])}", to_string=True)
    found = re.search(r"vtable for .*::(\w+)Device\b", symbol)
    return found[1].lower() if found else "device"


def values(tensor):
    kind = str(tensor["dtype_"]).rsplit("::", 1)[-1]
    count = min(int(tensor["numel_"]), COUNT)
    letter = FORMATS[kind]
    try:
        memory = gdb.selected_inferior().read_memory(int(tensor["data_"]), count * struct.calcsize(letter)) if count else b""
    except gdb.MemoryError:
        return "values that the host cannot read"
    numbers = struct.unpack(f"={count}{letter}", bytes(memory))
    if kind == "bf16":
        numbers = [struct.unpack("=f", struct.pack("=I", n << 16))[0] for n in numbers]
    more = ", ..." if int(tensor["numel_"]) > count else ""
    return "{" + ", ".join(f"{n:.6g}" if isinstance(n, float) else str(n) for n in numbers) + more + "}"


def tensor_text(tensor):
    storage = shared(tensor["storage_"])
    if not storage:
        return "undefined"
    kind = str(tensor["dtype_"]).rsplit("::", 1)[-1]
    return f"{kind}{dims(tensor['shape_'])} on {device(storage)} {values(tensor)}"


def placement_text(placement):
    kind = str(placement["kind"]).rsplit("::", 1)[-1]
    return {"replicate": "R", "partial": "P"}.get(kind, f"S({int(placement['dim'])})")


def dtensor_text(dtensor):
    placements = ", ".join(map(placement_text, items(dtensor["placements_"])))
    ragged = ", ragged" if shared(dtensor["layout_"]) else ""
    return f"{dims(dtensor['global_'])} ({placements}{ragged}), local {tensor_text(dtensor['local_'])}"


def parameter_text(parameter):
    state = shared(parameter["state_"])
    if not state:
        return "undefined"
    text = f"{state['name'].format_string()} {dims(state['shape'])}"
    if not state["group"]:
        return text + ", not sharded yet"
    try:
        address = int(parameter.address)
        shard = gdb.parse_and_eval(f"((sherd::Parameter*){address})->shard()")
        if not str(shard["dtype_"]).endswith("f32"):  # dtensor() would queue a conversion
            return text + ": shard " + tensor_text(shard)
        return text + ": " + dtensor_text(gdb.parse_and_eval(f"((sherd::Parameter*){address})->dtensor()"))
    except (gdb.error, TypeError):  # a core file, a value without an address
        return text + ", sharded"


class Printer:
    def __init__(self, value, text):
        self.value, self.text = value, text

    def to_string(self):
        return self.text(self.value)


def printers():
    collection = gdb.printing.RegexpCollectionPrettyPrinter("sherd")
    for name, text in (("Tensor", tensor_text), ("DTensor", dtensor_text), ("Parameter", parameter_text)):
        collection.add_printer(name, f"^sherd::{name}$", lambda value, text=text: Printer(value, text))
    return collection


gdb.printing.register_pretty_printer(gdb.current_objfile(), printers(), replace=True)
