# Two commands: `make demo` and `make test`. Each makes its own virtual environment and
# needs only Python 3.10+ and make. `make upstream` writes the patch series for mlx-lm,
# `make upstream-check` tests it in a fresh environment that lacks this package.
PYTHON ?= python3
# On Linux mlx needs its CPU backend.
CPU := $(if $(filter Linux,$(shell uname -s)),cpu$(shell printf ','),)
CHECKS := hypothesis jinja2 jsonschema llguidance openai pytest requests rich
SOURCES := pyproject.toml hatch_build.py mlx_lm_kimi.pth

.PHONY: demo test check upstream upstream-check clean

demo: .venv-demo/ready
	.venv-demo/bin/mlx_lm_kimi demo

test: .venv-test/ready
	.venv-test/bin/python -m pytest tests

check: .venv-test/ready
	.venv-test/bin/black --check --quiet .
	.venv-test/bin/isort --check-only --quiet .
	.venv-test/bin/ruff check --quiet .

upstream: .venv-test/ready
	.venv-test/bin/python -m upstream.make

# The newest mlx-lm needs Python 3.11; on Linux mlx needs its CPU backend.
upstream-check:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12 upstream-check")'
	$(PYTHON) -m venv --clear .venv-upstream
	.venv-upstream/bin/python -m pip install --quiet --disable-pip-version-check mlx-lm $(if $(CPU),'mlx[cpu]') $(CHECKS)
	.venv-upstream/bin/python -m upstream.check

.venv-demo/ready: $(SOURCES)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed: make PYTHON=python3.12 demo")'
	$(PYTHON) -m venv --clear .venv-demo
	.venv-demo/bin/python -m pip install --quiet --disable-pip-version-check -e '.[$(CPU)demo]'
	touch $@

.venv-test/ready: $(SOURCES)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed: make PYTHON=python3.12 test")'
	$(PYTHON) -m venv --clear .venv-test
	.venv-test/bin/python -m pip install --quiet --disable-pip-version-check -e '.[$(CPU)test]'
	touch $@

clean:
	rm -rf .venv-demo .venv-test .venv-upstream build dist
