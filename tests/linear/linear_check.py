"""Builds and runs the checker (checker/, Go)."""
import os
import subprocess
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCES = os.path.join(HERE, "checker")


def checker_path():
    """QUEEN_LINEAR_CHECKER, or one made here by the go on PATH."""
    named = os.environ.get("QUEEN_LINEAR_CHECKER")
    if named:
        return named
    newest = max(os.path.getmtime(os.path.join(SOURCES, name)) for name in os.listdir(SOURCES))
    made = os.path.join(tempfile.gettempdir(), f"queen-linear-checker-{os.getuid()}-{int(newest)}")
    if not os.path.exists(made):
        partial = f"{made}.{os.getpid()}"
        subprocess.run(["go", "build", "-o", partial, "."], cwd=SOURCES, check=True)
        os.rename(partial, made)
    return made


def check(path, timeout_s=120):
    """(exit code, text): 0 linearizable, 1 not, 2 no history, 3 not decided."""
    result = subprocess.run([checker_path(), "-timeout", f"{timeout_s}s", path], capture_output=True, text=True, check=False)
    return result.returncode, result.stdout + result.stderr
