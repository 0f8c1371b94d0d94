package store_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/store"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// TestScenarios plays testdata/scenarios/*.txt: url and a URL, and below it what the log shows of it and what is wrong.
func TestScenarios(t *testing.T) {
	casetest.Scenarios(t, func(t *testing.T, s *casetest.Scenario) {
		s.Play(t, func(c casetest.Command) string {
			url := strings.Join(c.Args, " ")
			if c.Name == "answer" {
				user, password, expires, err := store.ParseAnswer(url)
				if err != nil {
					return err.Error() + "\n"
				}
				return user + " " + password + " " + expires + "\n"
			}
			answer := store.Redact(url) + "\n"
			if err := store.CheckURL(url); err != nil {
				answer += err.Error() + "\n"
			}
			for _, secret := range []string{"secret", "271828", "75h", "pa ss", "p@ss", "p%40ss", "rest"} {
				if strings.Contains(answer, secret) {
					c.Fatalf("shows the password: %s", answer)
				}
			}
			return answer
		}, "url ...", "answer ...")
	})
}

func TestConnectNamesWhatIsWrong(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	for url, want := range map[string]string{
		"redis://h/zero":                    "the database must be a number",
		"redis://h?password_file=h4nter2":   "password_file: no such file or directory; write the path",
		"redis://h?username_file=/dev/null": "username_file: /dev/null: not a regular file; write the path",
		"rediss://h?tls_ca=" + none:         "tls_ca: stat " + none,
		"rediss://h?tls_ca=url_test.go":     "tls_ca: url_test.go has no certificate in PEM",
		"rediss://h?tls_cert=a&tls_key=b/b": "tls_cert, tls_key: stat a",
	} {
		_, err := store.Connect(t.Context(), url, redisstore.Options{})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "h4nter2") {
			t.Errorf("%q: %v, want %q", url, err, want)
		}
	}
}
