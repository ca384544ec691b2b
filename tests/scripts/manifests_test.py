"""The manifests of scripts/cluster: their form, that their counts agree, and that train_gpt has the flags they give.

manifests_test.py FOLDER TRAIN_GPT; ends with 77 (skipped) without PyYAML.
"""

import pathlib
import re
import subprocess
import sys

try:
    import yaml
except ImportError:
    print("SKIPPED: PyYAML is missing; install python3-yaml")
    sys.exit(77)

folder, train_gpt = pathlib.Path(sys.argv[1]), sys.argv[2]
help_text = subprocess.run([train_gpt, "--help-all"], capture_output=True, text=True, check=True).stdout
known = set(re.findall(r"^\s+(--[a-z0-9-]+)", help_text, re.MULTILINE))
problems = []


def require(good, what):
    if not good:
        problems.append(what)


def check_pods(file, spec, dns_name):
    """The spec of an Indexed Job whose pod 0 is called dns_name."""
    pod = spec["template"]["spec"]
    require(spec.get("completionMode") == "Indexed", f"{file}: the job is not Indexed")
    require(spec["completions"] == spec["parallelism"], f"{file}: completions and parallelism differ")
    require(pod["restartPolicy"] in ("Never", "OnFailure"), f"{file}: restartPolicy {pod['restartPolicy']}")
    require(len(pod["containers"]) == 1, f"{file}: one container is one rank")
    container = pod["containers"][0]
    env = {e["name"]: e for e in container["env"]}
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "SHERD_STORE_PORT", "SHERD_JOB_SECRET"):
        require(name in env, f"{file}: {name} is not set")
    for name, e in env.items():
        require(isinstance(e.get("value", ""), str), f"{file}: the value of {name} is no text; put it in quotes")
    require(env["WORLD_SIZE"]["value"] == str(spec["completions"]), f"{file}: WORLD_SIZE is not completions")
    path = env["RANK"]["valueFrom"]["fieldRef"]["fieldPath"]
    require(path == "metadata.annotations['batch.kubernetes.io/job-completion-index']", f"{file}: RANK is {path}")
    require(env["MASTER_ADDR"]["value"] == dns_name, f"{file}: MASTER_ADDR is not {dns_name}")
    secret = env["SHERD_JOB_SECRET"]["valueFrom"]["secretKeyRef"]
    made = f"kubectl create secret generic {secret['name']} --from-file={secret['key']}=/dev/stdin"
    require(made in (folder / file).read_text(), f"{file}: does not say how its Secret is made: {made}")
    ports = [p["containerPort"] for p in container["ports"]]
    require(ports == [int(env["SHERD_STORE_PORT"]["value"])], f"{file}: the store's port is not the container's")
    require(container["command"] == ["/bin/sh", "-c"], f"{file}: the arguments are for a shell")
    mounts = {m["name"] for m in container["volumeMounts"]}
    require(mounts == {v["name"] for v in pod["volumes"]}, f"{file}: volumes and mounts differ")
    script = container["args"][0]
    parsed = subprocess.run(["sh", "-n", "-c", script], capture_output=True, text=True)
    require(parsed.returncode == 0, f"{file}: {parsed.stderr}")
    gpus = int(container["resources"]["limits"].get("nvidia.com/gpu", 0))
    require(gpus == (1 if "--device cuda" in script else 0), f"{file}: {gpus} GPUs for a rank")
    return int(env["SHERD_STORE_PORT"]["value"])


def check_indexed_job(file):
    service, job = yaml.safe_load_all((folder / file).read_text())
    require((service["apiVersion"], service["kind"]) == ("v1", "Service"), f"{file}: no Service comes first")
    require(service["spec"]["clusterIP"] == "None", f"{file}: the Service is not headless (clusterIP: None)")
    require(service["spec"]["publishNotReadyAddresses"], f"{file}: ranks cannot look each other up before they are ready")
    require((job["apiVersion"], job["kind"]) == ("batch/v1", "Job"), f"{file}: no Job comes second")
    name = job["metadata"]["name"]
    require(service["spec"]["selector"] == {"job-name": name}, f"{file}: the Service does not select the job's pods")
    subdomain = job["spec"]["template"]["spec"]["subdomain"]
    require(subdomain == service["metadata"]["name"], f"{file}: the pods' subdomain is not the Service")
    port = check_pods(file, job["spec"], f"{name}-0.{subdomain}")
    require([p["port"] for p in service["spec"]["ports"]] == [port], f"{file}: the Service has another port")


def check_jobset(file):
    (jobset,) = yaml.safe_load_all((folder / file).read_text())
    require((jobset["apiVersion"], jobset["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet"), f"{file}: no JobSet")
    require(jobset["spec"]["network"]["enableDNSHostnames"], f"{file}: pods have no names")
    (ranks,) = jobset["spec"]["replicatedJobs"]
    require(ranks["replicas"] == 1, f"{file}: RANK counts inside one job alone")
    name = jobset["metadata"]["name"]
    check_pods(file, ranks["template"]["spec"], f"{name}-{ranks['name']}-0-0.{name}")


check_indexed_job("kubernetes_indexed_job.yaml")
check_jobset("kubernetes_jobset.yaml")

# Flags of the launchers, with those of train_gpt behind its name.
for file in sorted(folder.iterdir()):
    text = re.sub(r"\\\n", " ", file.read_text())
    if file.suffix == ".yaml":
        text = " ".join(text.split("\n"))
    for command in re.findall(r"(?:/|exec )train_gpt\"? (.*?)(?:\n|\$start|$)", text):
        for flag in re.findall(r"(?<=\s)--[a-z0-9-]+", " " + command):
            require(flag in known, f"{file.name}: train_gpt has no {flag}")

for problem in problems:
    print(problem)
print(f"{len(problems)} problems")
sys.exit(1 if problems else 0)
