#!/usr/bin/env bash
# A conversation with a small local model, through the command `branchline`: a question, an answer; a second process that
# goes on; a branch from the first answer; the tree. `make demo` installs what it needs and runs it.
set -euo pipefail

BRANCHLINE_HOME=$(mktemp -d)
export BRANCHLINE_HOME
trap 'rm -rf "$BRANCHLINE_HOME"' EXIT

bold=; plain=
[ -t 1 ] && bold=$'\033[1m' plain=$'\033[0m'

say() { printf '\n%s\n' "$*"; }

# Print a command as one would type it, then run it.
show() {
    local word line=
    for word in "$@"; do
        case $word in *[[:space:]]*) line+=" '$word'" ;; *) line+=" $word" ;; esac
    done
    printf '\n%s$%s%s\n' "$bold" "$line" "$plain"
    "$@"
}

ask() { show branchline chat --model local --no-tools "$@"; }

# The end of the id of the first answer: that is how `branchline tree` shows it.
first_answer() {
    branchline tree last --json | python -c '
import json, sys
entries = [json.loads(line) for line in sys.stdin]
print(next(entry["id"] for entry in entries if entry["kind"] == "assistant")[-8:])'
}

echo 'A small model answers on this machine: it is weak, but it is a real one.'
ask 'Name one animal that can fly.'

say 'A second process goes on with the same conversation:'
ask --session last 'What does it eat?'

say 'Back to the first answer, and another way from there:'
ask --session last --at "$(first_answer)" 'Write one line of a poem about it.'

say 'Both ways are kept. The active one goes straight down:'
show branchline tree last

say 'What the model would be shown next, and whether the record is whole:'
show branchline context last
show branchline verify last
