package cli

import (
	"fmt"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/alecthomas/kong"
)

// printConfig prints the value of each flag of serve, and where it comes from. Passwords in URLs are hidden; of files
// with secrets the paths are shown.
func printConfig(io streams, command *kong.Context) error {
	given := map[*kong.Flag]bool{}
	for _, p := range command.Path {
		if p.Flag != nil && !p.Resolved {
			given[p.Flag] = true
		}
	}
	table := tabwriter.NewWriter(io.out, 0, 0, 2, ' ', 0)
	for _, f := range command.Selected().Flags {
		if f.Hidden || f.Name == "help" || f.Name == "print-config" {
			continue
		}
		origin := "default"
		for _, name := range f.Envs {
			if _, ok := os.LookupEnv(name); ok {
				origin = name
			}
		}
		if given[f] {
			origin = "command line"
		}
		fmt.Fprintf(table, "--%s=%s\t# %s\n", f.Name, quoted(shownFlag(f)), origin)
	}
	return table.Flush()
}

// shownFlag is shownValue of a flag. Of headers it shows the names alone: a value may be a token.
func shownFlag(f *kong.Flag) string {
	headers, ok := reflect.TypeAssert[map[string]string](f.Target)
	if !ok || f.Name != "xds-header" {
		return shownValue(f.Target)
	}
	parts := make([]string, 0, len(headers))
	for name := range headers {
		parts = append(parts, name+"=xxxxx")
	}
	slices.Sort(parts)
	return strings.Join(parts, ";")
}

// shownValue is a flag's value as it may be written on a command line, without passwords.
func shownValue(v reflect.Value) string {
	switch v.Kind() {
	case reflect.Slice:
		parts := make([]string, v.Len())
		for i := range parts {
			parts[i] = shownValue(v.Index(i))
		}
		return strings.Join(parts, ",")
	case reflect.Map:
		var parts []string
		for _, key := range v.MapKeys() {
			parts = append(parts, shownValue(key)+"="+shownValue(v.MapIndex(key)))
		}
		slices.Sort(parts)
		return strings.Join(parts, ";")
	default:
		return withoutSecrets(fmt.Sprint(v.Interface()))
	}
}

// withoutSecrets hides the password of a URL, also one that cannot be parsed, and whatever stands in its options under
// a name like that of a secret.
func withoutSecrets(text string) string {
	scheme, rest, isURL := strings.Cut(text, "://")
	if !isURL {
		return text
	}
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		user, _, hasPassword := strings.Cut(rest[:at], ":")
		if hasPassword {
			user += ":xxxxx"
		}
		rest = user + rest[at:]
	}
	before, query, hasQuery := strings.Cut(rest, "?")
	if !hasQuery {
		return scheme + "://" + rest
	}
	options := strings.Split(query, "&")
	for i, option := range options {
		name, _, _ := strings.Cut(option, "=")
		plain, err := url.QueryUnescape(name)
		if plain = strings.ToLower(plain); err != nil ||
			!strings.HasSuffix(plain, "_file") && (strings.Contains(plain, "password") || strings.Contains(plain, "token") ||
				strings.Contains(plain, "secret")) {
			options[i] = name + "=xxxxx"
		}
	}
	return scheme + "://" + before + "?" + strings.Join(options, "&")
}
