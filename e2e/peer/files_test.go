//go:build e2e

package peer

import (
	"fmt"
	"strings"
	"testing"
)

// oddFiles are rule files that the peer reads, though they look like mistakes, and what is asked of them. DOMAIN is the
// file's domain.
var oddFiles = []struct{ name, text, ask string }{
	{"no rules", "domain: DOMAIN\n", "a=1"},
	{"an empty list", "domain: DOMAIN\ndescriptors: []\n", "a=1"},
	{
		"a name at the top",
		"name: x\ndomain: DOMAIN\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 3}}]", "a=1",
	},
	{"no rate", "domain: DOMAIN\ndescriptors: [{key: a, rate_limit: {unit: day}}]", "a=1"},
	{"an empty limit", "domain: DOMAIN\ndescriptors: [{key: a, rate_limit: }]", "a=1"},
	{
		"shadow mode in the limit",
		"domain: DOMAIN\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 0, " +
			"shadow_mode: true}}]", "a=1",
	},
	{
		"fields of a limit on the descriptor",
		"domain: DOMAIN\ndescriptors: [{key: a, name: n, unlimited: true, unit: day, " +
			"requests_per_unit: 9, replaces: [{name: x}], rate_limit: {unit: day, requests_per_unit: 3}}]", "a=1",
	},
	{
		"fields of a descriptor at the top",
		"domain: DOMAIN\nkey: a\nshadow_mode: true\ndescriptors: [{key: a, rate_limit: {unit: day, " +
			"requests_per_unit: 0}}]", "a=1",
	},
	{
		"fields of a descriptor in the limit",
		"domain: DOMAIN\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 3, key: b, " +
			"value: c}}]", "a=1",
	},
	{
		"a domain in a descriptor",
		"domain: DOMAIN\ndescriptors: [{key: a, domain: x, rate_limit: {unit: day, requests_per_unit: 3}}]", "a=1",
	},
	{
		"further fields in replaces",
		"domain: DOMAIN\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 3, " +
			"replaces: [{name: x, unit: day}]}}]", "a=1",
	},
	{
		"replaces what is not there",
		"domain: DOMAIN\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 3, " +
			"replaces: [{name: x}]}}]", "a=1",
	},
	{
		"replaces in a circle",
		"domain: DOMAIN\ndescriptors: [{key: a, rate_limit: {name: n, unit: day, requests_per_unit: 3, " +
			"replaces: [{name: m}]}}, " +
			"{key: b, rate_limit: {name: m, unit: day, requests_per_unit: 3, replaces: [{name: n}]}}]", "a=1 b=1",
	},
	{
		"unlimited with a unit that is none",
		"domain: DOMAIN\ndescriptors: [{key: a, rate_limit: {unlimited: true, unit: fortnight}}]", "a=1",
	},
	{
		"unlimited with a rate",
		"domain: DOMAIN\ndescriptors: [{key: a, rate_limit: {unlimited: true, requests_per_unit: 3}}]", "a=1",
	},
	{
		"a pattern that is never reached",
		"domain: DOMAIN\ndescriptors: [{key: a, value: \"*\", rate_limit: {unit: day, " +
			"requests_per_unit: 3}}, " +
			"{key: a, value: \"x*\", rate_limit: {unit: day, requests_per_unit: 4}}]", "a=x1",
	},
	{
		"a key twice",
		"domain: DOMAIN\ndescriptors:\n  - key: b\n    key: a\n    rate_limit: {unit: day, " +
			"requests_per_unit: 3}\n", "a=1",
	},
	{
		"a rate twice",
		"domain: DOMAIN\ndescriptors:\n  - key: a\n    rate_limit: {unit: day, requests_per_unit: 3, " +
			"requests_per_unit: 4}\n", "a=1",
	},
	{
		"two documents",
		"domain: DOMAIN\ndescriptors: [{key: a, rate_limit: {unit: day, " +
			"requests_per_unit: 3}}]\n---\nnonsense: 1\n", "a=1",
	},
	{
		"two documents with rules",
		"domain: DOMAIN\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 3}}]\n---\n" +
			"domain: DOMAIN\ndescriptors: [{key: b, rate_limit: {unit: day, requests_per_unit: 0}}]\n", "a=1 b=1",
	},
	{
		"two documents of which one is no YAML",
		"domain: DOMAIN\ndescriptors:\n  - {key: a, rate_limit: {unit: day, requests_per_unit: 3}}\n---\n{a: [\n", "a=1",
	},
	{
		"an empty document behind the rules",
		"---\ndomain: DOMAIN\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 3}}]\n---\n", "a=1",
	},
	{
		"a text in base64",
		"domain: DOMAIN\ndescriptors: [{key: a, value: !!binary aGVsbG8=, rate_limit: {unit: day, requests_per_unit: 3}}]",
		"a=hello a=aGVsbG8=",
	},
	{
		"a number as a value",
		"domain: DOMAIN\ndescriptors: [{key: a, value: 010, rate_limit: {unit: day, requests_per_unit: 3}}]", "a=010",
	},
	{
		"a truth as a value",
		"domain: DOMAIN\ndescriptors: [{key: a, value: yes, rate_limit: {unit: day, requests_per_unit: 3}}]", "a=yes",
	},
	{
		"a rate in octal",
		"domain: DOMAIN\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 010}}]", "a=1",
	},
	{
		"an anchor",
		"domain: DOMAIN\ndescriptors: [{key: a, rate_limit: &l {unit: day, requests_per_unit: 3}}, " +
			"{key: b, rate_limit: *l}]", "a=1 b=1",
	},
	{
		"JSON",
		`{"domain": "DOMAIN", "descriptors": [{"key": "a", "rate_limit": {"unit": "day", "requests_per_unit": 3}}]}`, "a=1",
	},
	{
		"a key with a star",
		"domain: DOMAIN\ndescriptors: [{key: \"r/*\", value: \"r/*\", descriptors: [{key: b, " +
			"rate_limit: {unit: day, requests_per_unit: 3}}]}]", "r/*=r/*,b=1",
	},
	{"a hundred levels", "domain: DOMAIN\n" + levels(100), strings.TrimSuffix(strings.Repeat("k=1,", 100), ",")},
}

func levels(n int) string {
	text := "descriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 3}}]"
	for range n - 1 {
		text = "descriptors: [{key: k, " + text + "}]"
	}
	return text
}

// TestOddFiles loads files into both that the peer reads though they look like mistakes, by names of every kind.
func TestOddFiles(t *testing.T) {
	t.Parallel()
	files := map[string]string{}
	for i, f := range oddFiles {
		name := []string{"%d.yaml", "%d", "%d.json", "%d.txt"}[i%4]
		files[fmt.Sprintf(name, i)] = strings.ReplaceAll(f.text, "DOMAIN", fmt.Sprintf("domain%d", i))
	}
	p := startPair(t, writeRules(t, files), env{})
	for i, f := range oddFiles {
		req := request(t, fmt.Sprintf("domain%d", i), f.ask)
		both := &series{pair: p}
		for range 2 {
			peer, weir := both.ask(t.Context(), req)
			for _, d := range differences(peer, weir) {
				t.Errorf("%s, %s: differ in %s", f.name, f.ask, d)
			}
			if peer.err != nil {
				t.Errorf("%s: the peer fails: %v", f.name, peer.err)
			}
		}
	}
}
