package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// A repository with a small program, which imports one module that this module needs, too.
var repository = map[string]string{
	"go.mod":                                "module example.com/small\n\ngo 1.26.0\n\nrequire github.com/google/licensecheck v0.3.1\n",
	"LICENSE":                               "the license of the program",
	"README.md":                             "read me",
	"CHANGELOG.md":                          "what changed",
	"cmd/sidecar/main.go":                   smallProgram,
	"cmd/sidecar/not/part/of/it/LICENSE.md": "of nothing",
}

const smallProgram = `package main

import (
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	"github.com/google/licensecheck"
)

func main() {
	info, _ := debug.ReadBuildInfo()
	fmt.Print(info.Main.Version, " ", licensecheck.Scan(nil).Percent)
	if len(os.Args) > 1 {
		authorities, err := os.ReadFile("/etc/ssl/certs/ca-certificates.crt")
		if err == nil && strings.Count(string(authorities), "BEGIN CERTIFICATE") > 50 {
			err = fmt.Errorf("authorities")
		}
		fmt.Println("", os.Args[0], os.Args[1:], os.Getuid(), os.Getgid(), err)
	}
}
`

func commit(t *testing.T, dir string, args ...string) {
	t.Helper()
	for _, words := range append([][]string{{"add", "."}, {"commit", "-q", "-m", "test"}}, args) {
		if len(words) == 0 {
			continue
		}
		cmd := exec.CommandContext(t.Context(), "git", append([]string{
			"-C", dir, "-c", "user.name=test", "-c", "user.email=test@example.com",
		}, words...)...)
		cmd.Env = append(os.Environ(), "GIT_COMMITTER_DATE=2026-11-22T12:00:00+01:00")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %s: %v\n%s", words, err, out)
		}
	}
}

// smallRepository returns a repository whose HEAD is v0.1.0, with a change that is not committed.
func smallRepository(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := exec.CommandContext(t.Context(), "git", "init", "-q", dir).Run(); err != nil {
		t.Fatal(err)
	}
	sums, err := os.ReadFile("../go.sum")
	if err != nil {
		t.Fatal(err)
	}
	for path, text := range repository {
		write(t, filepath.Join(dir, path), text)
	}
	write(t, filepath.Join(dir, "go.sum"), string(sums))
	if err := os.CopyFS(filepath.Join(dir, "tools/release/packaging"), os.DirFS("packaging")); err != nil {
		t.Fatal(err)
	}
	commit(t, dir, "tag", "v0.1.0")
	write(t, filepath.Join(dir, "cmd/sidecar/main.go"), "this does not compile")
	return dir
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A release of a small program: what is in each file, that both builds agree, and that the image can be pushed.
func TestRelease(t *testing.T) {
	repo, out := smallRepository(t), filepath.Join(t.TempDir(), "out")
	own := runtime.GOOS + "_" + runtime.GOARCH
	var log strings.Builder
	platforms := "linux/amd64,linux/arm64," + runtime.GOOS + "/" + runtime.GOARCH
	if runtime.GOOS == "linux" {
		platforms = "linux/amd64,linux/arm64"
	}
	err := run(t.Context(), []string{"-repo", repo, "-out", out, "-quick", "-platforms", platforms}, &log)
	if err != nil {
		t.Fatalf("%v\n%s", err, &log)
	}
	if !strings.Contains(log.String(), "built twice: both are the same\n") {
		t.Errorf("it says\n%s", &log)
	}

	sums, err := os.ReadFile(filepath.Join(out, checksumFile))
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for line := range strings.Lines(string(sums)) {
		sum, file, _ := strings.Cut(strings.TrimSpace(line), "  ")
		data, err := os.ReadFile(filepath.Join(out, file))
		if err != nil || fmt.Sprintf("%x", sha256.Sum256(data)) != sum {
			t.Errorf("%s has not the checksum %s: %v", file, sum, err)
		}
		files = append(files, file)
	}
	for _, file := range []string{
		"weir_0.1.0_image.tar", "weir_0.1.0_linux_amd64.cdx.json", "weir_0.1.0_linux_amd64.tar.gz",
		"weir_0.1.0_linux_arm64.cdx.json", "weir_0.1.0_linux_arm64.tar.gz", "weir_0.1.0_linux_arm64.deb",
		"weir_0.1.0_linux_arm64.rpm", "weir.rb",
	} {
		if !slices.Contains(files, file) {
			t.Errorf("there is no checksum of %s", file)
		}
	}

	archive := untarred(t, filepath.Join(out, "weir_0.1.0_"+own+".tar.gz"))
	for path, want := range map[string]string{
		"LICENSE": "the license of the program", "README.md": "read me", "CHANGELOG.md": "what changed",
		"ratelimit": "-> weir", "licenses/std/LICENSE": "Copyright",
		"licenses/github.com/google/licensecheck/LICENSE": "Copyright",
	} {
		if got := archive["weir_0.1.0_"+own+"/"+path]; !strings.Contains(got, want) {
			t.Errorf("the archive has in %s %q, want %q", path, got, want)
		}
	}
	program := filepath.Join(t.TempDir(), "weir")
	if err := os.WriteFile(program, []byte(archive["weir_0.1.0_"+own+"/weir"]), 0o700); err != nil {
		t.Fatal(err)
	}
	if says, err := exec.CommandContext(t.Context(), program).Output(); err != nil || string(says) != "v0.1.0 0" {
		t.Errorf("the program says %q, %v", says, err)
	}
	checkSBOM(t, filepath.Join(out, "weir_0.1.0_"+own+".cdx.json"), archive["weir_0.1.0_"+own+"/weir"])
	checkPushed(t, out)
	checkPackages(t, out, string(sums))
}

func checkSBOM(t *testing.T, path, program string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var bom cyclonedx.BOM
	if err := cyclonedx.NewBOMDecoder(bytes.NewReader(data), cyclonedx.BOMFileFormatJSON).Decode(&bom); err != nil {
		t.Fatal(err)
	}
	hash := fmt.Sprintf("%x", sha256.Sum256([]byte(program)))
	if root := bom.Metadata.Component; root.Version != "v0.1.0" || (*root.Hashes)[0].Value != hash {
		t.Errorf("the SBOM is of %s with the hash %s, want %s", root.Version, (*root.Hashes)[0].Value, hash)
	}
	var found []string
	for _, c := range *bom.Components {
		license, err := json.Marshal(c.Licenses)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, c.PackageURL+" "+string(license))
	}
	want := []string{
		"pkg:golang/std@" + runtime.Version() + ` [{"license":{"id":"BSD-3-Clause"}}]`,
		`pkg:golang/github.com/google/licensecheck@v0.3.1 [{"license":{"id":"BSD-3-Clause"}}]`,
	}
	if !slices.Equal(found, want) {
		t.Errorf("the SBOM lists %q, want %q", found, want)
	}
	if bom.Metadata.Timestamp != "2026-11-22T11:00:00Z" {
		t.Errorf("the SBOM's time is %s, want that of the commit", bom.Metadata.Timestamp)
	}
}

// checkPushed pushes the image to a registry as the workflow does, and pulls it for each platform.
func checkPushed(t *testing.T, out string) {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo))))
	defer server.Close()
	repository := strings.TrimPrefix(server.URL, "http://") + "/weir"
	push := exec.CommandContext(t.Context(), "sh", "-euc",
		`tar -xf "$0"/weir_*_image.tar -C "$1" && go tool crane push "$1" "$2"`, out, t.TempDir(), repository+":0.1.0")
	if log, err := push.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, log)
	}
	ref, err := name.ParseReference(repository + ":0.1.0")
	if err != nil {
		t.Fatal(err)
	}
	for _, arch := range []string{"amd64", "arm64"} {
		image, err := remote.Image(ref, remote.WithPlatform(v1.Platform{OS: "linux", Architecture: arch}))
		if err != nil {
			t.Fatal(err)
		}
		config, err := image.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if config.Architecture != arch || config.Config.User != user || config.Config.Healthcheck == nil ||
			config.Config.Labels["org.opencontainers.image.version"] != "v0.1.0" {
			t.Errorf("linux/%s has the configuration %+v", arch, config)
		}
		files := map[string]string{}
		r := mutate.Extract(image)
		readTar(t, r, files)
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		for path, want := range map[string]string{
			"bin/weir": "\x7fELF", "bin/ratelimit": "-> weir", "etc/passwd": "nobody:x:65534",
			"etc/ssl/certs/ca-certificates.crt": "BEGIN CERTIFICATE", "usr/share/doc/weir/LICENSE": "the license",
			"usr/share/doc/weir/licenses/std/LICENSE": "Copyright",
		} {
			if !strings.Contains(files[path], want) {
				t.Errorf("linux/%s has no %q in %s", arch, want, path)
			}
		}
	}
}

// untarred are the files of a tar.gz, and where links lead.
func untarred(t *testing.T, path string) map[string]string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // it was only read
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	readTar(t, z, files)
	return files
}

func readTar(t *testing.T, r io.Reader, into map[string]string) {
	t.Helper()
	for archive := tar.NewReader(r); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeSymlink {
			data = []byte("-> " + h.Linkname)
		}
		into[strings.TrimPrefix(h.Name, "/")] = string(data)
		if h.Uid != 0 || h.Uname != "" {
			t.Errorf("%s belongs to %d %s", h.Name, h.Uid, h.Uname)
		}
	}
	if _, err := io.Copy(io.Discard, r); err != nil {
		t.Fatal(err)
	}
}

// A tar file ends as the format says: GNU tar refuses one that does not.
func TestTarEnds(t *testing.T) {
	data, err := tarOf([]file{{name: "a/b", mode: 0o644, data: []byte("x")}}, epoch(t))
	if err != nil {
		t.Fatal(err)
	}
	if end := data[max(0, len(data)-1024):]; len(data)%512 != 0 || !bytes.Equal(end, make([]byte, 1024)) {
		t.Errorf("%d bytes that do not end with two empty blocks", len(data))
	}
}

// What differs between two builds is named.
func TestCompare(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	for _, dir := range []string{a, b} {
		write(t, filepath.Join(dir, "same"), "same")
		write(t, filepath.Join(dir, "differs"), dir)
		if err := writeChecksums(dir); err != nil {
			t.Fatal(err)
		}
	}
	if err := compare(a, b); err == nil || strings.Count(err.Error(), "  differs\n") != 2 {
		t.Errorf("got %v, want both checksums of differs", err)
	}
	if err := compare(a, a); err != nil {
		t.Error(err)
	}
}

// A license that is not on the list, and a module without one, end a release.
func TestLicensesAreLookedAt(t *testing.T) {
	dir := t.TempDir()
	folders, roots := map[string]map[string]bool{"m": {dir: true}}, map[string]string{"m": dir}
	if _, err := readLicenses(folders, roots); err == nil || !strings.Contains(err.Error(), "m has no license") {
		t.Errorf("a module without a license: %v", err)
	}
	write(t, filepath.Join(dir, "LICENSE"), "SPDX-License-Identifier: AGPL-3.0\n"+
		"https://www.gnu.org/licenses/agpl-3.0.html\n")
	if all, err := readLicenses(folders, roots); err == nil {
		t.Errorf("another license is taken: %+v", all)
	}
}

func epoch(t *testing.T) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, "2026-11-22T12:00:00Z")
	if err != nil {
		t.Fatal(err)
	}
	return at
}
