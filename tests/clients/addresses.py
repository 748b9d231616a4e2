"""Whether cuGetProcAddress answers with the addresses that the driver exports: the hooks map by address.

Runs without the library. Reads tests/vectors/symbols/procaddr.csv; prints how many are equal, and which are not.
"""

import csv
import ctypes
import os
import sys

here = os.path.dirname(os.path.abspath(__file__))
driver = ctypes.CDLL("libcuda.so.1")
version = ctypes.c_int()
if driver.cuInit(0) or driver.cuDriverGetVersion(ctypes.byref(version)):
    sys.exit("the driver does not start")
equal, different, absent = 0, [], 0
with open(os.path.join(here, "../vectors/symbols/procaddr.csv"), encoding="utf-8") as rows:
    for row in csv.DictReader(rows):
        since = int(row["since_driver_version"])
        try:
            exported = ctypes.cast(getattr(driver, row["symbol"]), ctypes.c_void_p).value
        except AttributeError:
            exported = None
        if since > version.value or exported is None:
            absent += 1
            continue
        found, status = ctypes.c_void_p(), ctypes.c_int()
        flags = ctypes.c_uint64(2 if row["per_thread_stream"] == "1" else 1)
        code = driver.cuGetProcAddress_v2(
            row["name"].encode(), ctypes.byref(found), since, flags, ctypes.byref(status)
        )
        if code == 0 and found.value == exported:
            equal += 1
        else:
            different.append(f"{row['name']} at {since}: {row['symbol']} (code {code}, status {status.value})")
print(f"driver {version.value}: {equal} addresses equal, {len(different)} different, {absent} not in this driver")
for line in different:
    print("  " + line)
