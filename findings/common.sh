# SPDX-License-Identifier: Apache-2.0
# Sourced by the findings: a temporary folder, package installs into it, and comparisons.
set -euo pipefail
folder=$(mktemp -d)
trap '{ kill -KILL $(jobs -p) && wait; } 2>/dev/null || true; rm -rf "$folder"' EXIT
cd "$folder"

# python_packages REQUIREMENT...: an environment in $folder/venv, without what the caller has.
python_packages() {
    python3 -m venv venv
    venv/bin/pip install --quiet --disable-pip-version-check "$@"
    unset PYTHONPATH PYSPARK_PYTHON PYSPARK_DRIVER_PYTHON
}

# maven_packages NAME GROUP:ARTIFACT:VERSION...: their class path in $NAME.
maven_packages() {
    local name=$1 it group artifact version
    shift
    {
        echo '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        echo '<groupId>finding</groupId><artifactId>finding</artifactId><version>1</version><packaging>pom</packaging><dependencies>'
        for it; do
            IFS=: read -r group artifact version <<<"$it"
            echo "<dependency><groupId>$group</groupId><artifactId>$artifact</artifactId><version>$version</version></dependency>"
        done
        echo '</dependencies></project>'
    } >"$name.xml"
    mvn --quiet --batch-mode -Dstyle.color=never --file "$name.xml" dependency:build-classpath "-Dmdep.outputFile=$folder/$name.txt"
    printf -v "$name" '%s' "$(cat "$name.txt")"
}

# expect WHAT WANTED SEEN: fail if the behaviour is no longer what the finding states.
expect() {
    if [ "$2" != "$3" ]; then
        printf 'CHANGED  %s\n  was: %s\n  is:  %s\n' "$1" "$2" "$3"
        exit 1
    fi
    printf 'as seen  %s: %s\n' "$1" "$3"
}
