"""Runs at the start of Python processes that a recorded script starts: lets them record, too.

This folder comes first in their PYTHONPATH. Another `sitecustomize` that it hides is run as if this one
were not there. Nothing here may keep a process from starting.
"""

import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _arm() -> None:
    said = os.environ.get("LAYERDIFF_RECORD")
    if not said:
        return
    package = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))
    sys.path.append(package)  # last, and for this import only
    try:
        from layerdiff.record.children import Target, arm

        arm(Target.decoded(said))
    except Exception as error:
        print(f"layerdiff: process {os.getpid()} is not recorded: {error}", file=sys.stderr)
    finally:
        sys.path.remove(package)


def _run_hidden() -> None:
    others = [path for path in sys.path if os.path.abspath(path or os.curdir) != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_arm()
_run_hidden()
