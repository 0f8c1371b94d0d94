package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
)

// packageScript writes a deb and an rpm with the files of the archive $0.tar.gz, in the folder $1 of nfpm.yaml.
const packageScript = `nfpm=$(go tool -n nfpm) && cd "$1" && tar -xpzf "$0.tar.gz" --strip-components=1
for kind in deb rpm; do "$nfpm" package -f nfpm.yaml -p $kind -t "$0.$kind"; done`

// writePackages writes a deb and an rpm for each Linux platform, and the Homebrew formula with the checksums of the
// archives. It changes the files of the commit.
func writePackages(ctx context.Context, builds []*build, out string) error {
	dir := filepath.Join(builds[0].src, "tools", "release", "packaging")
	values := map[string]string{"version": builds[0].fileVersion()}
	for _, b := range builds {
		archive, err := os.ReadFile(filepath.Join(out, b.fileName(".tar.gz")))
		if err != nil {
			return err
		}
		values[b.platform.os+"_"+b.platform.arch] = fmt.Sprintf("%x", sha256.Sum256(archive))
		if b.platform.os != "linux" {
			continue
		}
		env := []string{"VERSION=" + b.version, "ARCH=" + b.platform.arch, fmt.Sprint("SOURCE_DATE_EPOCH=", b.date.Unix())}
		if _, err := output(ctx, ".", env, "sh", "-euc", packageScript, filepath.Join(out, b.fileName("")), dir); err != nil {
			return err
		}
	}
	formula, err := os.ReadFile(filepath.Join(dir, "weir.rb"))
	if err != nil {
		return err
	}
	text := os.Expand(string(formula), func(name string) string { return values[name] })
	return os.WriteFile(filepath.Join(out, "weir.rb"), []byte(text), 0o644) //nolint:gosec // a release is public
}
