package ratelimitenv

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// oneCase is an environment without a variable of the table, and its value.
type oneCase struct {
	beside string // other variables, separated by blanks
	value  string
	// want is a flag, or a variable of OpenTelemetry, that the value leads to. It is empty for what is not mapped.
	want string
}

// cases has a case for every variable of the table, from testdata/variables.txt.
func cases(t *testing.T) map[string]oneCase {
	t.Helper()
	data, err := os.ReadFile("testdata/variables.txt")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]oneCase{}
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Split(strings.TrimSuffix(line, "\n")+" |  |  |  |  | ", " | ")
		all[f[0]] = oneCase{beside: f[1], value: f[2], want: f[3]} // internal/cli tests the others
	}
	return all
}

// texts are the flags and variables.
func texts(s *Settings) (all []string) {
	for _, f := range append(slices.Clone(s.Flags), s.OTel...) {
		all = append(all, f.Name+"="+f.Value)
	}
	return all
}

// with is an environment without name, and with it if it has a value.
func with(beside, name, value string) (environ []string) {
	for v := range strings.FieldsSeq(beside) {
		if n, _, _ := strings.Cut(v, "="); n != name {
			environ = append(environ, v)
		}
	}
	if name != "STATSD_PROTOCOL" && !strings.Contains(beside, "REDIS_URL") && name != "REDIS_URL" {
		environ = append(environ, "REDIS_SOCKET_TYPE=tcp", "REDIS_URL=127.0.0.1:6379")
	}
	if value != "" {
		environ = append(environ, name+"="+value)
	}
	return environ
}

// variable is one of the page about envoyproxy/ratelimit. Its action is empty if it maps to a flag.
type variable struct{ name, value, action string }

// variables has every variable of the page's table; variables without an effect share rows, without their defaults.
func variables(t *testing.T) (all []variable) {
	t.Helper()
	page, err := os.ReadFile("../../../docs/migrating/envoyproxy-ratelimit.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile("(?m)^\\| (`[A-Z_`, ]+`) \\| (?:`(.*?)`)? \\| (?:(\\w+): )?")
	for _, row := range rows.FindAllStringSubmatch(string(page), -1) {
		for name := range strings.SplitSeq(row[1], ", ") {
			all = append(all, variable{strings.Trim(name, "`"), row[2], row[3]})
		}
	}
	return all
}

// Every variable of envoyproxy/ratelimit has the default and does what the page about it says.
func TestEveryVariable(t *testing.T) {
	all, listed := cases(t), variables(t)
	for _, v := range listed {
		c, ok := all[v.name]
		if !ok {
			t.Errorf("no case for %s", v.name)
			continue
		}
		if value, ok := defaults[v.name]; ok && value != v.value {
			t.Errorf("%s is %q by default, on the page %q", v.name, value, v.value)
		}
		got, err := Read(with(c.beside, v.name, c.value))
		if err != nil {
			t.Errorf("%s=%s: %v", v.name, c.value, err)
			continue
		}
		remarked := slices.ContainsFunc(got.Remarks, func(line string) bool { return strings.HasPrefix(line, v.name+":") })
		switch v.action {
		case "":
			if c.want == "" || !slices.Contains(texts(got), c.want) {
				t.Errorf("%s=%s: %q, want %q", v.name, c.value, texts(got), c.want)
			}
		case "note":
			if !remarked {
				t.Errorf("%s=%s: no remark", v.name, c.value)
			}
			fallthrough
		case "ignore":
			without, err := Read(with(c.beside, v.name, ""))
			if err != nil || !cmp.Equal(texts(without), texts(got)) {
				t.Errorf("%s=%s has an effect, %v", v.name, c.value, cmp.Diff(texts(without), texts(got)))
			}
			if v.action == "ignore" && remarked {
				t.Errorf("%s=%s has a remark", v.name, c.value)
			}
		case "refuse":
		default:
			t.Errorf("the page does not say what becomes of %s", v.name)
		}
	}
	if len(all) != len(listed) {
		t.Errorf("%d cases, and %d variables on the page", len(all), len(listed))
	}
}

// A variable with the value that it has by default does nothing.
func TestDefaults(t *testing.T) {
	for _, beside := range []string{"", "USE_PROMETHEUS=true TRACING_ENABLED=true REDIS_PERSECOND=true"} {
		base, err := Read(strings.Fields(beside))
		if err != nil {
			t.Fatal(err)
		}
		flags := map[string]string{}
		for _, s := range base.Flags {
			flags[s.Name] = s.Value
		}
		for _, v := range variables(t) {
			if strings.Contains(beside, v.name+"=") || v.value == "" {
				continue
			}
			got, err := Read(append(strings.Fields(beside), v.name+"="+v.value))
			if err != nil {
				t.Errorf("%s=%s: %v", v.name, v.value, err)
				continue
			}
			for _, s := range got.Flags {
				if was, ok := flags[s.Name]; ok && was != s.Value && !strings.HasSuffix(v.name, "_TIMEOUT") {
					t.Errorf("%s=%s makes --%s %s, by default it is %s", v.name, v.value, s.Name, s.Value, was)
				}
			}
		}
	}
}

// All that is wrong is in one error.
func TestEveryError(t *testing.T) {
	_, err := Read([]string{"USE_STATSD=maybe", "PORT=x", "REDIS_TYPE=x", "REDIS_TIMEOUT=10", "CONFIG_TYPE=x"})
	if err == nil || strings.Count(err.Error(), "\n") != 4 {
		t.Errorf("error %v, want five lines", err)
	}
}

// No output or error shows a secret, and a remark says where it belongs. The text before the colon of REDIS_AUTH may be
// a part of a password.
func TestSecrets(t *testing.T) {
	s, err := Read([]string{
		"REDIS_SOCKET_TYPE=tcp", "REDIS_TYPE=SENTINEL", "REDIS_URL=m,a:1", "REDIS_AUTH=hunter2:hunter2",
		"REDIS_SENTINEL_AUTH=hunter2:hunter2",
		"CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS=authorization:hunter2",
		"REDIS_PERSECOND=true", "REDIS_PERSECOND_SOCKET_TYPE=tcp", "REDIS_PERSECOND_URL=redis://:hunter2@b:1",
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range s.Flags {
		if strings.Contains(f.Shown, "hunter2") {
			t.Errorf("--%s shows %s", f.Name, f.Shown)
		}
	}
	if strings.Contains(strings.Join(s.Remarks, "\n"), "hunter2") {
		t.Errorf("a remark shows a secret: %q", s.Remarks)
	}
	_, err = Read([]string{
		"REDIS_SOCKET_TYPE=tcp", "REDIS_URL=redis://:hunter2@%zz", "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS=hunter2",
	})
	if err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("error %v, want one without the secret", err)
	}
}
