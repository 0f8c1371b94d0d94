package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
)

// readPackages prints what the tools of Debian and of Red Hat read from the packages in the folder $0.
const readPackages = `cd "$0"; for deb in *.deb; do
  dpkg-deb --show --showformat '${Package} ${Version} ${Architecture}\n' "$deb"
  dpkg-deb --info "$deb" conffiles
  dpkg-deb --contents "$deb" | awk '!/^d/ {print $1, $2, $4, $5, $6}'
  dpkg-deb --ctrl-tarfile "$deb" | tar -tvf - --full-time | awk '{print $1, $2, $4, $5, $6}'
done
for rpm in *.rpm; do
  rpm -qp --queryformat '%{NAME} %{VERSION} %{ARCH} %{BUILDHOST} %{BUILDTIME:date}\n' "$rpm"
  rpm -qp --configfiles "$rpm"
  rpm -qp --queryformat '[%{FILEMODES:perms} %{FILEUSERNAME}/%{FILEGROUPNAME} %{FILEMTIMES:date} %{FILENAMES}\n]' "$rpm"
  rpm -qp --scripts "$rpm" | grep scriptlet
done`

// checkPackages compares the packages with testdata/packages.txt, and the sums in the formula with those of the files.
func checkPackages(t *testing.T, out, sums string) {
	t.Helper()
	if runtime.GOOS != "linux" {
		return // dpkg and rpm are Linux's
	}
	read := exec.CommandContext(t.Context(), "sh", "-euc", readPackages, out)
	read.Env = append(os.Environ(), "TZ=UTC", "LC_ALL=C")
	got, err := read.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: scripts/tools.sh packages installs the programs\n%s", err, got)
	}
	want, err := os.ReadFile("testdata/packages.txt")
	if err != nil || string(got) != string(want) {
		t.Errorf("testdata/packages.txt differs, %v: the packages have\n%s", err, got)
	}
	formula, err := os.ReadFile(filepath.Join(out, "weir.rb"))
	if err != nil {
		t.Fatal(err)
	}
	pairs := regexp.MustCompile(`(?m)/v0\.1\.0/(\S+)"\s+sha256 "(.+)"$`).FindAllSubmatch(formula, -1)
	for _, pair := range pairs {
		if !strings.Contains(sums, string(pair[2])+"  "+string(pair[1])+"\n") {
			t.Errorf("the formula has the sum %s of %s", pair[2], pair[1])
		}
	}
	if len(pairs) != 2 || strings.Contains(string(formula), "${") {
		t.Errorf("the formula is\n%s", formula)
	}
}

// TestUnit: systemd accepts the unit, and rates its exposure at most 1.5 of 10.
func TestUnit(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("systemd is Linux's")
	}
	unit, err := os.ReadFile("packaging/weir.service")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "weir.service")
	write(t, path, strings.ReplaceAll(string(unit), "/usr/bin/weir", "/bin/true"))
	for _, args := range [][]string{{"verify", path}, {"security", "--offline=true", "--threshold=15", path}} {
		says, err := exec.CommandContext(t.Context(), "systemd-analyze", args...).CombinedOutput()
		if err != nil || args[0] == "verify" && len(says) > 0 {
			t.Errorf("systemd-analyze %q: %v\n%s", args, err, says)
		}
	}
}
