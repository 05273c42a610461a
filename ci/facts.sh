#!/usr/bin/env bash
# Hold the facts of this checkout against the files of the Python index, and propose what differs as one commit on a branch.
#
#   ci/facts.sh update    rows of releases that are new
#   ci/facts.sh check     one release against its files, machine code included; another one each week
#
# The commit replaces what an earlier run left on the branch facts/update or facts/check of the remote `origin`, so that
# one change request shows the newest run. Its message has the values and the files that prove them. Prints the branch, or
# nothing if there is nothing to propose. Nothing is merged.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mode=${1:-}
found=$(mktemp)
trap 'rm -f "$found" "$found.text"' EXIT

case $mode in
  update)
    envkit matrix update --write --json > "$found"
    ;;
  check)
    releases=$(envkit matrix list releases --json | python -c '
import json, sys, time
rows = [row["torch"] for row in json.load(sys.stdin)["rows"]]
print(rows[int(time.time() // (7 * 24 * 3600)) % len(rows)])')
    torch=${FACTS_TORCH:-$releases}
    code=0
    envkit matrix check --online --deep --torch "$torch" --json > "$found" || code=$?
    case $code in
      0) exit 0 ;;
      2) envkit matrix update --torch "$torch" --deep --write > /dev/null ;;
      *) exit "$code" ;;
    esac
    ;;
  *)
    echo "usage: ci/facts.sh update|check" >&2
    exit 2
    ;;
esac
if [ -z "$(git status --porcelain -- envkit/facts)" ]; then
  if [ "$mode" = check ]; then
    echo "torch $torch differs from the facts, and no table changes: envkit matrix check --online --torch $torch" >&2
    exit 2
  fi
  exit 0
fi
python -m tests.golden --update > /dev/null

python - "$mode" "$found" > "$found.text" << 'END'
import json
import sys

mode, path = sys.argv[1:]
document = json.load(open(path))
if mode == "update":
    print("Facts: torch " + ", ".join(document["releases"]))
else:
    names = ", ".join(one["name"] for one in document["proofs"])
    print(f"Facts: {names} as its files say")
print("\nRead from the files of the Python index; review every line, nothing is merged by itself.\n")
for question in document.get("asked", []):
    print(f"- no file says: {question}")
for proof in document.get("proofs", []):
    for text in proof["refused"]:
        print(f"- refused: {text}")
    for one in proof["values"]:
        if one["state"] != "same":
            print(f"- {one['table']} {one['row']}: {one['field']}: facts {one['facts']}, proved {one['value']}")
            print(f"  {one['kind']} of {one['file']} ({one['sha256']}): {(one.get('quote') or '')[:200]!r}")
END

branch=facts/$mode
git switch --quiet --force-create "$branch"
git add -- envkit/facts tests/golden/files docs man Dockerfile environment.yml
git commit --quiet --file "$found.text"
git push --quiet --force ${FACTS_PUSH_OPTIONS:+"$FACTS_PUSH_OPTIONS"} origin "HEAD:refs/heads/$branch"
echo "$branch"
