"""What the test directories share: long tests begin first, one a worker.

    @pytest.mark.seconds(20)     about how long the test takes, mostly waiting

xdist hands each worker a part of the list and the rest as they come; a long test at the end of the list would be waited for
by all. So the long ones go, longest first, to the beginnings of the workers' first parts."""

import os


def pytest_configure(config):
    config.addinivalue_line("markers", "seconds(n): about how long the test takes; those that say so begin first")


def seconds_of(item):
    mark = item.get_closest_marker("seconds")
    return mark.args[0] if mark else 0


def pytest_collection_modifyitems(items):
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT") or 0)
    if workers == 0:
        return
    first = max(len(items) // workers // 4, 2)  # the size of xdist's first parts
    long = sorted((item for item in items if seconds_of(item) > 0), key=lambda item: (-seconds_of(item), item.nodeid))
    short = [item for item in items if seconds_of(item) == 0]
    ordered = []
    for worker in range(workers):
        part = long[worker::workers][:first]
        ordered += part + short[:first - len(part)]
        del short[:first - len(part)]
    begun = set(map(id, ordered))
    items[:] = ordered + [item for item in long if id(item) not in begun] + short
