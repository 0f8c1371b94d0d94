//go:build e2e

package composetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/podtest"
)

// peersImage is the image that is replaced by Weir's.
const peersImage = "docker.io/envoyproxy/ratelimit:master"

// Addresses of the pods of Istio's sample.
const istioNetwork, istioRedis, istioService = "10.90.0.0/24", "10.90.0.21", "10.90.0.22"

// composeFiles starts the Compose file of users who have their rules in a folder.
func composeFiles(t *testing.T) {
	dropInCompose(t, "files")
	host := "127.0.0.1"
	ask := func(descriptor string) (int, string) { return post(t, host, "shop", descriptor) }
	for i, want := range []int{200, 200, 429, 429} {
		if status, body := ask(`{"key":"client","value":"a"}`); status != want {
			t.Errorf("request %d of a client with two a year: status %d, want %d: %s", i+1, status, want, body)
		}
	}
	for range 3 {
		if status, body := ask(`{"key":"path","value":"/cart"}`); status != 200 {
			t.Errorf("a limit in shadow mode answers %d: %s", status, body)
		}
	}
	for _, line := range []string{
		"shop.client: unit=YEAR requests_per_unit=2, shadow_mode: false, quota_mode: false",
		"shop.path_/cart: unit=YEAR requests_per_unit=1, shadow_mode: true, quota_mode: false",
	} {
		if _, body := get(t, "http://"+host+":6070/rlconfig"); !strings.Contains(body, line+"\n") {
			t.Errorf("/rlconfig has no line %q:\n%s", line, body)
		}
	}
}

// composeStatsd starts the Compose file of users who have their metrics by statsd.
func composeStatsd(t *testing.T) {
	dropInCompose(t, "statsd")
	if status, body := post(t, "127.0.0.1", "shop", `{"key":"client","value":"b"}`); status != 200 {
		t.Errorf("status %d, want 200: %s", status, body)
	}
	const want = "ratelimit_service_rate_limit_shop_client_total_hits 1"
	await(t, func() error {
		status, body, err := tryGet(t, "http://127.0.0.1:9102/metrics")
		if err == nil && (status != 200 || !strings.Contains(body, want+"\n")) {
			err = fmt.Errorf("the statsd exporter has no %q: status %d\n%s", want, status, body)
		}
		return err
	})
}

// istioSample starts the pods of Istio's sample: the rules are a ConfigMap.
func istioSample(t *testing.T, dir string) {
	podtest.Hosts(t, dir, istioRedis+" redis")
	command(t, "podman", "network", "create", "--subnet", istioNetwork, "cluster")
	play := func(file, ip string) {
		t.Cleanup(func() { command(t, "podman", "kube", "down", file) })
		command(t, "podman", "kube", "play", "--network", "cluster", "--ip", ip, file)
	}
	play("testdata/istio-redis.yaml", istioRedis)
	play("testdata/istio.yaml", istioService)
	t.Cleanup(func() { podtest.Logs(t) })
	healthy(t, istioService)
	for i, want := range []int{200, 429} {
		status, body := post(t, istioService, "ratelimit", `{"key":"PATH","value":"/productpage"}`)
		if status != want {
			t.Errorf("request %d of one a year: status %d, want %d: %s", i+1, status, want, body)
		}
	}
	if status, body := post(t, istioService, "ratelimit", `{"key":"PATH","value":"/api"}`); status != 200 {
		t.Errorf("another path: status %d, want 200: %s", status, body)
	}
	const line = "ratelimit.PATH_/productpage: unit=YEAR requests_per_unit=1, shadow_mode: false, quota_mode: false"
	if _, body := get(t, "http://"+istioService+":6070/rlconfig"); !strings.Contains(body, line+"\n") {
		t.Errorf("/rlconfig has no line %q:\n%s", line, body)
	}
}

// dropInCompose starts testdata/NAME/compose.yml and ends it with the test.
func dropInCompose(t *testing.T, name string) {
	t.Helper()
	file := "testdata/" + name + "/compose.yml"
	t.Cleanup(func() {
		podtest.Logs(t)
		composeFile(t, name, file, "down", "--timeout", "1")
	})
	composeFile(t, name, file, "up", "--detach")
	healthy(t, "127.0.0.1")
}

// healthy waits until the service on the host answers /healthcheck as envoyproxy/ratelimit does.
func healthy(t *testing.T, host string) {
	t.Helper()
	await(t, func() error {
		status, body, err := tryGet(t, "http://"+host+":8080/healthcheck")
		if err == nil && (status != 200 || body != "OK") {
			err = fmt.Errorf("/healthcheck: status %d, body %q", status, body)
		}
		return err
	})
}

// post sends a request with one descriptor of one entry to /json.
func post(t *testing.T, host, domain, entry string) (status int, body string) {
	t.Helper()
	request := fmt.Sprintf(`{"domain":%q,"descriptors":[{"entries":[%s]}]}`, domain, entry)
	status, body, err := send(t, http.MethodPost, "http://"+host+":8080/json", request)
	if err != nil {
		t.Fatal(err)
	}
	return status, body
}

func get(t *testing.T, url string) (status int, body string) {
	t.Helper()
	status, body, err := tryGet(t, url)
	if err != nil {
		t.Fatal(err)
	}
	return status, body
}

func tryGet(t *testing.T, url string) (status int, body string, err error) {
	t.Helper()
	return send(t, http.MethodGet, url, "")
}

func send(t *testing.T, method, url, request string) (status int, body string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(request))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), errors.Join(err, resp.Body.Close())
}
