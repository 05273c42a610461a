#!/usr/bin/env bash
# Compare the facts of this checkout with the files on the Python index, and push the differences as one commit on a
# branch.
#
#   ci/facts.sh update    add rows for new releases
#   ci/facts.sh check     compare one release with its files, including machine code; a different release each week
#
# The commit replaces that of an earlier run on the branch facts/update or facts/check of the remote `origin`, so the
# change request shows the newest run. Its message lists the values and the files with their evidence. Prints the
# branch, or nothing if there is no difference. Nothing is merged.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mode=${1:-}
result=$(mktemp)
trap 'rm -f "$result" "$result.text"' EXIT

case $mode in
  update)
    envkit matrix update --write --json > "$result"
    ;;
  check)
    release=$(envkit matrix list releases --json | python -c '
import json, sys, time
rows = [row["torch"] for row in json.load(sys.stdin)["rows"]]
print(rows[int(time.time() // (7 * 24 * 3600)) % len(rows)])')
    torch=${FACTS_TORCH:-$release}
    code=0
    envkit matrix check --online --deep --torch "$torch" --json > "$result" || code=$?
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
    echo "torch $torch differs from the facts, but no table changed: envkit matrix check --online --torch $torch" >&2
    exit 2
  fi
  exit 0
fi
python -m tests.golden --update > /dev/null

python - "$mode" "$result" > "$result.text" << 'END'
import json
import sys

mode, path = sys.argv[1:]
document = json.load(open(path))
if mode == "update":
    print("Facts: torch " + ", ".join(document["releases"]))
else:
    names = ", ".join(proof["name"] for proof in document["proofs"])
    print(f"Facts: {names} as in its files")
print("\nRead from the files on the Python index. Review every line; nothing is merged automatically.\n")
for question in document.get("asked", []):
    print(f"- not in any file: {question}")
for proof in document.get("proofs", []):
    for text in proof["refused"]:
        print(f"- refused: {text}")
    for row in proof["values"]:
        if row["state"] != "same":
            print(f"- {row['table']} {row['row']}: {row['field']}: facts {row['facts']}, files {row['value']}")
            print(f"  {row['kind']} of {row['file']} ({row['sha256']}): {(row.get('quote') or '')[:200]!r}")
END

branch=facts/$mode
git switch --quiet --force-create "$branch"
git add -- envkit/facts tests/golden/files docs man Dockerfile environment.yml
git commit --quiet --file "$result.text"
git push --quiet --force ${FACTS_PUSH_OPTIONS:+"$FACTS_PUSH_OPTIONS"} origin "HEAD:refs/heads/$branch"
echo "$branch"
