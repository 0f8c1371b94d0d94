package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"go.yaml.in/yaml/v3"
)

// TestWorkflows checks what actionlint does not: every action is pinned by its commit, and permissions are given job by
// job or only to read.
func TestWorkflows(t *testing.T) {
	workflows, err := filepath.Glob("../.github/workflows/*.yml")
	if err != nil || len(workflows) < 2 {
		t.Fatalf("found the workflows %q, %v", workflows, err)
	}
	pinned := regexp.MustCompile(`^[\w-]+/[\w-]+@[0-9a-f]{40}$`)
	for _, path := range workflows {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var workflow struct {
			Permissions map[string]string
			Jobs        map[string]struct {
				Permissions map[string]string
				Steps       []struct{ Uses string }
			}
		}
		if err := yaml.Unmarshal(text, &workflow); err != nil {
			t.Fatal(err)
		}
		if workflow.Permissions == nil {
			t.Errorf("%s: without permissions, a job has those of the repository", path)
		}
		for what, access := range workflow.Permissions {
			if access != "read" {
				t.Errorf("%s: %s: %s holds for every job", path, what, access)
			}
		}
		for name, job := range workflow.Jobs {
			for _, step := range job.Steps {
				if step.Uses != "" && !pinned.MatchString(step.Uses) {
					t.Errorf("%s: %s: %s is not pinned by a commit", path, name, step.Uses)
				}
			}
		}
	}
}
