package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/CycloneDX/cyclonedx-go"
)

// writeSBOM writes the modules that the linker has recorded in the program.
func writeSBOM(b *build, to string) error {
	program, err := os.ReadFile(b.binary)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(program)
	root := component(b, "", b.info.Main.Path, b.version, cyclonedx.ComponentTypeApplication)
	root.Name = "weir"
	root.Licenses = licenses("Apache-2.0")
	root.Hashes = &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}}
	root.Properties = &[]cyclonedx.Property{
		{Name: "weir:platform", Value: b.platform.String()}, {Name: "weir:revision", Value: b.revision},
	}

	std := component(b, "std", "std", b.info.GoVersion, cyclonedx.ComponentTypeLibrary)
	components := []cyclonedx.Component{std}
	for _, dep := range b.info.Deps {
		used := cmp.Or(dep.Replace, dep)
		components = append(components, component(b, dep.Path, used.Path, used.Version, cyclonedx.ComponentTypeLibrary))
	}
	depends := make([]string, len(components))
	for i := range components {
		depends[i] = components[i].BOMRef
	}
	bom := cyclonedx.NewBOM()
	bom.Metadata = &cyclonedx.Metadata{
		Timestamp: b.date.UTC().Format(time.RFC3339),
		Component: &root,
		Tools: &cyclonedx.ToolsChoice{Components: &[]cyclonedx.Component{{
			Type: cyclonedx.ComponentTypeApplication, Name: "tools/release",
			BOMRef: "tools/release", Version: b.version,
		}}},
	}
	bom.Components = &components
	bom.Dependencies = &[]cyclonedx.Dependency{{Ref: root.BOMRef, Dependencies: &depends}}
	bom.SerialNumber = "urn:uuid:" + uuid(sum)

	var out bytes.Buffer
	encoder := cyclonedx.NewBOMEncoder(&out, cyclonedx.BOMFileFormatJSON).SetPretty(true).SetEscapeHTML(false)
	if err := encoder.EncodeVersion(bom, cyclonedx.SpecVersion1_6); err != nil {
		return err
	}
	return os.WriteFile(to, out.Bytes(), 0o644) //nolint:gosec // a release is public
}

// component returns a component with the license of the module licensed, which another module may replace.
func component(b *build, licensed, path, version string, kind cyclonedx.ComponentType) cyclonedx.Component {
	purl := fmt.Sprintf("pkg:golang/%s@%s", path, strings.ReplaceAll(version, "+", "%2B"))
	c := cyclonedx.Component{BOMRef: purl, Type: kind, Name: path, Version: version, PackageURL: purl}
	if expression := licenseOf(b.licenses, licensed); expression != "" {
		c.Licenses = licenses(expression)
	}
	return c
}

func licenses(expression string) *cyclonedx.Licenses {
	if strings.Contains(expression, " ") {
		return &cyclonedx.Licenses{{Expression: expression}}
	}
	return &cyclonedx.Licenses{{License: &cyclonedx.License{ID: expression}}}
}

// uuid returns a UUID of version 8 (RFC 9562) from a hash of the content.
func uuid(sum [sha256.Size]byte) string {
	u := sum[:16]
	u[6] = u[6]&0x0f | 0x80
	u[8] = u[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}
