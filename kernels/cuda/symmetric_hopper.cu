// Symmetric products by Hopper's matrix instructions.
#include "launch.h"
