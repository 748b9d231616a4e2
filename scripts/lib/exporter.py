"""What vgpu-monitor serves on this machine, for checks that start one."""
import urllib.request


def metrics():
    """The text of its metrics; None while it does not answer."""
    try:
        with urllib.request.urlopen("http://127.0.0.1:31993/metrics", timeout=10) as answer:
            return answer.read().decode()
    except OSError:
        return None
