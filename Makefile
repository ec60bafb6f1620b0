# Two commands: `make demo` and `make test`. Each makes its own virtual environment and
# needs only Python 3.10+ and make.
PYTHON ?= python3
# On Linux mlx needs its CPU backend.
CPU := $(if $(filter Linux,$(shell uname -s)),cpu$(shell printf ','),)
SOURCES := pyproject.toml hatch_build.py mlx_lm_kimi.pth

.PHONY: demo test check clean

demo: .venv-demo/ready
	.venv-demo/bin/mlx_lm_kimi demo

test: .venv-test/ready
	.venv-test/bin/python -m pytest tests

check: .venv-test/ready
	.venv-test/bin/black --check --quiet .
	.venv-test/bin/isort --check-only --quiet .
	.venv-test/bin/ruff check --quiet .

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
	rm -rf .venv-demo .venv-test build dist
