"""One engine a file, all behind the contract of `base.py`."""
