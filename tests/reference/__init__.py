"""The page docs/reference.md, made from the code: `python -m tests.reference` writes it.

Names, defaults, ranges, numbers and versions are read from the modules that define them.  The limits are explained by
their docstrings, settings of nodes by their help, metrics by their HELP lines and errors by their sentences.  The code
has no texts for most configs, so `configs.py` has them; a test reports each config without a text.

`tests/unit/deploy/test_reference.py` compares the page with the code.
"""
