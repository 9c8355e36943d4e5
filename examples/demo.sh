#!/usr/bin/env bash
# A conversation with a small local model, through the command `branchline`: a question, an answer; a second process that
# goes on; a branch from the first answer; the tree. `make demo` installs what it needs and runs it.
set -euo pipefail

BRANCHLINE_HOME=$(mktemp -d)
export BRANCHLINE_HOME
trap 'rm -rf "$BRANCHLINE_HOME"' EXIT

show() {
    printf '\n\033[1m$'
    printf ' %q' "$@"
    printf '\033[0m\n'
    "$@"
}

ask() { show branchline chat --model local --no-tools "$@"; }

# The first entry of the session that is an answer.
first_answer() {
    branchline tree last --json | python3 -c '
import json, sys
entries = [json.loads(line) for line in sys.stdin]
print(next(entry["id"] for entry in entries if entry["kind"] == "assistant"))'
}

echo 'A small model answers on this machine: it is weak, but it is a real one.'
ask 'Name one animal that can fly.'

printf '\nA second process goes on with the same conversation:\n'
ask --session last 'What does it eat?'

printf '\nBack to the first answer, and another way from there:\n'
ask --session last --at "$(first_answer)" 'Write one line of a poem about it.'

printf '\nBoth ways are kept. The active one goes straight down:\n'
show branchline tree last

printf '\nWhat the model would be shown next:\n'
show branchline context last
show branchline verify last
