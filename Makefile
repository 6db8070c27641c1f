# One page of commands; CMake does the work. `make help` lists them.
BUILD := build
DATA := $(or $(PROTEAN_DATA),../shared/data)
ARGS ?= --admin-port 8001
MODEL ?= $(firstword $(wildcard models/builtin $(DATA)/models/tinystories-656k))
SOURCES = $(shell find src tests bench -name '*.h' -o -name '*.cc')

.PHONY: help deps build serve test e2e load deb check check-format check-tree check-code check-alone format clean

help:     ## this list
	@sed -n 's/^\([a-z0-9]*\):.*## */  make \1\t/p' Makefile | expand -t 16

deps:
	@tools/install-deps build

build: deps $(BUILD)/build.ninja    ## build/protean, optimised
	@ninja -C $(BUILD) protean

serve: build    ## serve MODEL=path (a built-in model by default) with ARGS="--flag ..."; prints the addresses to open
	@test -n "$(MODEL)" || { echo "make serve: say which model: make serve MODEL=path" >&2; exit 2; }
	$(BUILD)/protean serve $(MODEL) $(ARGS)

test:    ## everything that must hold: unit tests, tests across modules, OpenAI's SDK against the server
	@tools/install-deps build test
	@cmake -S . -B $(BUILD) -G Ninja -DPROTEAN_TESTS=ON
	@ninja -C $(BUILD)
	@ctest --test-dir $(BUILD) -j "$$(nproc)" --output-on-failure
	@$(MAKE) --no-print-directory e2e

e2e: tests/e2e/node_modules/.package-lock.json
	@cd tests/e2e && PROTEAN=$(abspath $(BUILD)/protean) timeout -k 10 1800 npm test --silent

load: build tests/e2e/node_modules/.package-lock.json    ## 256 streams for LOAD_SECONDS=60, with clients that leave
	@cd tests/e2e && PROTEAN=$(abspath $(BUILD)/protean) node load.mjs

deb: build    ## build/protean_VERSION_ARCH.deb: program, systemd unit, configuration
	@tools/install-deps deb
	@packaging/build-deb $(BUILD)/protean $(BUILD)

check: check-format check-tree check-code    ## style: format, module graph and limits, clang-tidy

check-format:
	@clang-format --dry-run -Werror $(SOURCES)

check-tree:
	@python3 -B tests/tidy/tidy.py

check-code:
	@CC=clang CXX=clang++ cmake -S . -B $(BUILD)/lint -G Ninja -DCMAKE_UNITY_BUILD=ON -DPROTEAN_TESTS=OFF -DPROTEAN_WEB=OFF >/dev/null
	@python3 -B tests/tidy/lint.py $(BUILD)/lint

check-alone:
	@python3 -B tests/tidy/alone.py

format:    ## clang-format over the tree
	@clang-format -i $(SOURCES)

clean:    ## remove what was built
	@rm -rf $(BUILD) build-* tests/e2e/node_modules web/node_modules

$(BUILD)/build.ninja:
	@cmake -S . -B $(BUILD) -G Ninja -DPROTEAN_TESTS=OFF

tests/e2e/node_modules/.package-lock.json: tests/e2e/package-lock.json
	@cd tests/e2e && npm ci --no-audit --no-fund
