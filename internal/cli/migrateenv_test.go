package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// refusedEnvironments are those that a process called ratelimit does not start with: of each variable that can be wrong
// a wrong value, and what only the whole shows. says is a part of the message, but of what every flag's test has.
func refusedEnvironments(t *testing.T) (all [][]string, says []string) {
	t.Helper()
	refused, err := os.ReadFile("testdata/refused.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(refused)) {
		if !strings.HasPrefix(line, "#") {
			all, says = append(all, strings.Split(strings.TrimSpace(line), " | ")), append(says, "")
		}
	}
	text, err := os.ReadFile("ratelimitenv/testdata/variables.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Split(strings.TrimSpace(line), " | "); len(f) > 5 {
			all, says = append(all, append(strings.Fields(f[1]), f[0]+"="+f[4])), append(says, f[5])
		}
	}
	return all, says
}

// What the start refuses, migrate-env refuses, with the same message: that of each variable names it.
func TestMigrateEnvRefusesWhatTheStartRefuses(t *testing.T) {
	all, says := refusedEnvironments(t)
	for i, env := range all {
		t.Run(strings.Join(env, " "), func(t *testing.T) {
			text := strings.Join(env, "\n") + "\n"
			if !strings.Contains(text, "REDIS_URL=redis") {
				text = "REDIS_SOCKET_TYPE=tcp\nREDIS_URL=127.0.0.1:6379\n" + text
			}
			file := filepath.Join(t.TempDir(), "env")
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			var out, errs strings.Builder
			code := run(t.Context(), []string{"migrate-env", file}, &out, &errs)
			last, _, _ := strings.Cut(env[len(env)-1], "=")
			if code != exitUsage || out.Len() > 0 || !strings.Contains(errs.String(), last) ||
				!strings.Contains(errs.String(), says[i]) {
				t.Errorf("migrate-env exits with %d:\n%s%s\nwant %d, and %s: %s in the message", code, &out, &errs, exitUsage,
					last, says[i])
			}
			for v := range strings.Lines(text) {
				name, value, _ := strings.Cut(strings.TrimSpace(v), "=")
				t.Setenv(name, value)
			}
			var startErrs strings.Builder
			if code := start(t.Context(), []string{"ratelimit"}, &out, &startErrs); code == exitOK ||
				!strings.Contains(startErrs.String(), last) {
				t.Errorf("the process exits with %d:\n%s", code, &startErrs)
			}
		})
	}
}
