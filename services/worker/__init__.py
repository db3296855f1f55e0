"""The worker: continuous batching by KV budget, on real or simulated engines.

Importing the package settles, before torch is loaded, how its threads wait for each other: asleep.
By default they spin, which on cores shared with a broker and a cell takes away the very time
slice that the other thread needs: measured on 2 cores with 10 runnable processes, 6 tokens/s
spinning and 17 to 38 asleep, for the same or less CPU time. An OMP_WAIT_POLICY that is already
set stays.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
