#!/bin/bash
# Written by `envkit export slurm cpu cu126 --registry registry.example.com/team/train`. Prints the verdicts of a run by image and node, and exits with the most severe code.
#
#   bash verdicts.sh records/JOB
#
#SBATCH --job-name=envkit-verdicts
#SBATCH --ntasks=1
#SBATCH --time=5
#SBATCH --output=envkit-verdicts-%j.log

set -u
names=(
  cpu
  cu126
)
nodes_each=1
records=${1:?"usage: bash verdicts.sh records/JOB"}
[ -d "$records" ] || { echo "$records does not exist; run this in the folder of the submission" >&2; exit 2; }

word() {
  case $1 in
    0) echo verified ;;
    5) echo 'not verified' ;;
    6) echo FAILED ;;
    7) echo slower ;;
    8) echo 'no image' ;;
    9) echo 'environment problem' ;;
    10) echo 'wrong checksum' ;;
    124 | 137 | 143) echo 'stopped' ;;
    *) echo "exit code $1" ;;
  esac
}

# Codes, most severe first. A code that is not listed is a bug or a signal, and more severe than all others.
order=' 10 6 137 143 124 9 8 7 2 3 4 5 0 '
rank() { local rest=${order#* "$1" }; [ "$rest" != "$order" ] && echo "${#rest}" || echo 1000; }

worst=0
note() { [ "$(rank "$1")" -gt "$(rank "$worst")" ] && worst=$1; return 0; }

printf '%-40s  %-20s  %s\n' IMAGE NODE VERDICT
for name in "${names[@]}"; do
  seen=0
  for file in "$records/$name@"*.code; do
    [ -e "$file" ] || continue
    seen=$((seen + 1))
    node=${file##*@}
    code=$(cat "$file")
    printf '%-40s  %-20s  %s\n' "$name" "${node%.code}" "$(word "$code")"
    note "$code"
  done
  # Killed, timed out, on a lost node, or still waiting.
  [ "$seen" -ge "$nodes_each" ] || { printf '%-40s  %-20s  %s\n' "$name" - 'did not end'; note 9; }
done
exit "$worst"
