package main

import (
	"bytes"
	"encoding/pem"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

const (
	imageName = "ghcr.io/weir-ratelimit/weir"
	source    = "https://github.com/weir-ratelimit/weir"
	user      = "65534:65534" // nobody
)

// writeImage writes the image for all Linux platforms as an OCI archive: a tar file of an OCI layout.
func writeImage(builds []*build, out string) error {
	index := mutate.IndexMediaType(empty.Index, types.DockerManifestList)
	var last *build
	for _, b := range builds {
		if b.platform.os != "linux" {
			continue
		}
		image, err := imageOf(b)
		if err != nil {
			return err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{
			Platform: &v1.Platform{OS: b.platform.os, Architecture: b.platform.arch},
		}})
		last = b
	}
	if last == nil {
		return nil
	}
	dir := filepath.Join(filepath.Dir(last.binary), "image")
	written, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	if err := written.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": imageName + ":" + last.fileVersion(),
	})); err != nil {
		return err
	}
	files, err := filesIn(dir)
	if err != nil {
		return err
	}
	data, err := tarOf(files, last.date)
	if err != nil {
		return err
	}
	to := filepath.Join(out, fmt.Sprintf("weir_%s_image.tar", last.fileVersion()))
	return os.WriteFile(to, data, 0o644) //nolint:gosec // a release is public
}

// imageOf returns an image with two layers: the system files, which rarely change, and Weir. Its media types are
// Docker's, because podman drops the HEALTHCHECK of an image with OCI types.
func imageOf(b *build) (v1.Image, error) {
	program, documents, err := releaseFiles(b)
	if err != nil {
		return nil, err
	}
	for i := range program {
		program[i].name = path.Join("bin", program[i].name)
	}
	for i := range documents {
		documents[i].name = path.Join("usr/share/doc/weir", documents[i].name)
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.DockerManifestSchema2), types.DockerConfigJSON)
	for _, add := range []struct {
		files []file
		why   string
	}{{systemFiles(), "certificate authorities, users"}, {append(program, documents...), "weir " + b.version}} {
		data, err := tarOf(add.files, b.date)
		if err != nil {
			return nil, err
		}
		open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }
		layer, err := tarball.LayerFromOpener(open, tarball.WithMediaType(types.DockerLayer))
		if err != nil {
			return nil, err
		}
		image, err = mutate.Append(image, mutate.Addendum{
			Layer: layer, MediaType: types.DockerLayer,
			History: v1.History{CreatedBy: add.why, Created: v1.Time{Time: b.date}},
		})
		if err != nil {
			return nil, err
		}
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = b.platform.os, b.platform.arch, v1.Time{Time: b.date}
	config.Config = v1.Config{
		User:         user,
		Entrypoint:   []string{"/bin/weir"},
		Cmd:          []string{"serve", "--rules", "/rules"},
		Env:          []string{"PATH=/bin"},
		WorkingDir:   "/",
		ExposedPorts: map[string]struct{}{"8080/tcp": {}, "8081/tcp": {}, "6070/tcp": {}},
		Healthcheck: &v1.HealthConfig{
			Test:     []string{"CMD", "/bin/weir", "health", "--live", "--timeout", "2s"},
			Interval: 10 * time.Second, Timeout: 3 * time.Second, StartPeriod: 10 * time.Second,
		},
		Labels: map[string]string{
			"org.opencontainers.image.title":         "Weir",
			"org.opencontainers.image.description":   "A rate limit service for Envoy",
			"org.opencontainers.image.source":        source,
			"org.opencontainers.image.url":           source,
			"org.opencontainers.image.documentation": source + "/tree/main/docs",
			"org.opencontainers.image.licenses":      "Apache-2.0",
			"org.opencontainers.image.version":       b.version,
			"org.opencontainers.image.revision":      b.revision,
			"org.opencontainers.image.created":       b.date.UTC().Format(time.RFC3339),
		},
	}
	return mutate.ConfigFile(image, config)
}

// systemFiles returns the files of a system that an empty image lacks. Time zones are in the program.
func systemFiles() []file {
	var authorities bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil { // skip roots with constraints, which PEM cannot express
			_ = pem.Encode(&authorities, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // memory does not fail
		}
	}
	return []file{
		{name: "etc/passwd", mode: 0o644, data: []byte("root:x:0:0:root:/:/nonexistent\n" +
			"nobody:x:65534:65534:nobody:/:/nonexistent\n")},
		{name: "etc/group", mode: 0o644, data: []byte("root:x:0:\nnobody:x:65534:\n")},
		{name: "etc/ssl/certs/ca-certificates.crt", mode: 0o644, data: authorities.Bytes()},
		{name: "usr/share/doc/ca-certificates/README", mode: 0o644, data: []byte(
			"The certificate authorities that Mozilla trusts, as golang.org/x/crypto/x509roots/fallback has them.\n" +
				"License: MPL-2.0, https://www.mozilla.org/MPL/2.0/. Mount another file over\n" +
				"/etc/ssl/certs/ca-certificates.crt to trust others.\n")},
	}
}

// filesIn returns the files in a directory, with relative paths.
func filesIn(dir string) (files []file, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		files = append(files, file{name: filepath.ToSlash(name), mode: 0o644, data: data})
		return err
	})
	return files, err
}
