package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
	"ipoibd/hca/faults"
)

// The daemon gets each order with omitted names filled in, and so does the client in the answer.
func TestOrdersReachTheDaemon(t *testing.T) {
	f := newFake()
	path, ctx := serve(t, f), t.Context()
	for _, c := range []struct {
		want    string
		q, back Request
	}{
		{
			"fault soft {Kind:verb_hangs After:2 Count:3 Verb:query_qp}",
			&FaultRequest{Kind: "verb_hangs", After: 2, Count: 3, Verb: "query_qp"},
			&FaultRequest{Kind: "verb_hangs", After: 2, Count: 3, Verb: "query_qp", Device: "soft"},
		},
		{
			"fault soft {Kind:replug After:0 Count:0 Verb:}",
			&FaultRequest{Kind: "replug", Device: "soft"}, &FaultRequest{Kind: "replug", Device: "soft"},
		},
		{"reset ib0 reset_qp", &ResetRequest{Scope: ScopeQP}, &ResetRequest{Scope: ScopeQP, Interface: "ib0"}},
		{"reset ib0 rebuild_cq", &ResetRequest{Scope: ScopeCQ, Interface: "ib0"}, &ResetRequest{Scope: ScopeCQ, Interface: "ib0"}},
		{"reset soft", &ResetRequest{Scope: ScopeDevice}, &ResetRequest{Scope: ScopeDevice, Device: "soft"}},
		{"recover soft", &RecoverRequest{}, &RecoverRequest{Device: "soft"}},
		{"suspend {}", &SuspendRequest{}, &SuspendRequest{}},
		{"resume {}", &ResumeRequest{}, &ResumeRequest{}},
	} {
		if err := Post(ctx, path, c.q); err != nil {
			t.Errorf("%s: %v", c.want, err)
		}
		if got := f.taken(); !reflect.DeepEqual(got, []string{c.want}) {
			t.Errorf("daemon was ordered %q, want %q", got, c.want)
		}
		if !reflect.DeepEqual(c.q, c.back) {
			t.Errorf("%s came back as %+v", c.want, c.q)
		}
	}
}

// A reload, and the addition and removal of an interface, answer with what was done. Their requests
// cannot say that themselves. Mistakes have a status of their own.
func TestChangesReachTheDaemon(t *testing.T) {
	f := newFake()
	f.reload = report.Reload{Devices: []report.Outcome{}, Interfaces: []report.Outcome{{Name: "ib0", Change: "changed", Fields: []string{"mtu"}}}}
	path := serve(t, f)
	reload, remove := &ReloadRequest{}, &RemoveRequest{Interface: "ib0"}
	add := &AddRequest{RawMessage: json.RawMessage(`{"name":"x","mtu":7}`)}
	for _, c := range []struct {
		q    Request
		want string
	}{{reload, "reload "}, {add, `add {"name":"x","mtu":7}`}, {remove, "remove ib0"}} {
		if err := Post(t.Context(), path, c.q); err != nil {
			t.Error(err)
		}
		if got := f.taken(); !reflect.DeepEqual(got, []string{c.want}) {
			t.Errorf("daemon was ordered %q, want %q", got, c.want)
		}
	}
	var added report.Reload
	if err := json.Unmarshal(add.RawMessage, &added); err != nil || !reflect.DeepEqual([]report.Reload{reload.Reload, remove.Reload, added}, []report.Reload{f.reload, f.reload, f.reload}) {
		t.Errorf("answers %+v, %+v, %+v, %v; want %+v", reload.Reload, remove.Reload, added, err, f.reload)
	}
	for _, c := range []struct {
		url, body string
		code      int
	}{
		{"/v1/reload", `{"interfaces":[{"name":"ib0"}]}`, http.StatusBadRequest},
		{"/v1/reload", `{"file":"x"}`, http.StatusBadRequest},
		{"/v1/interfaces", `{"name":`, http.StatusBadRequest},
		{"/v1/interfaces", ``, http.StatusBadRequest},
		{"/v1/interfaces/remove", `{}`, http.StatusBadRequest},
		{"/v1/interfaces/remove", `{"interface":"ib0","devices":[{}]}`, http.StatusBadRequest},
	} {
		if code, text := raw(t, path, http.MethodPost, c.url, c.body); code != c.code {
			t.Errorf("%s %s: %d, %s", c.url, c.body, code, text)
		}
	}
	if got := f.taken(); got != nil {
		t.Errorf("daemon was ordered %q", got)
	}
	f.mu.Lock()
	f.err = fmt.Errorf("%w: line 3", ErrMistake)
	f.mu.Unlock()
	if err := Post(t.Context(), path, &ReloadRequest{}); !errors.Is(err, ErrMistake) || err.Error() != "mistake: line 3" {
		t.Errorf("error %v", err)
	}
}

// raw sends one request and returns the status code and the refusal's text.
func raw(t *testing.T, path, method, url, body string) (code int, text string) {
	t.Helper()
	client := http.Client{Timeout: limit, Transport: &http.Transport{
		DialContext:       func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", path) },
		DisableKeepAlives: true,
	}}
	req, err := http.NewRequestWithContext(t.Context(), method, "http://ipoibd"+url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var r refusal
	if err := json.Unmarshal(answer, &r); err != nil {
		t.Errorf("%s %s: the answer is not JSON: %q", method, url, answer)
	}
	return resp.StatusCode, r.Error
}

// None of these reaches the daemon.
func TestRefusalsOfRequests(t *testing.T) {
	f := newFake()
	path := serve(t, f)
	for _, c := range []struct {
		method, url, body string
		code              int
		text              string
	}{
		{"GET", "/", "", 404, "not found: /"},
		{"GET", "/v1/nothing", "", 404, "not found: /v1/nothing"},
		{"GET", "/v1/status/", "", 404, "not found"},
		{"POST", "/v1/status", "", 405, "requires GET"},
		{"GET", "/v1/fault", "", 405, "/v1/fault requires POST"},
		{"DELETE", "/v1/events", "", 405, "requires GET"},
		{"GET", "/v1/status", "{}", 400, "takes no body"},
		{"GET", "/v1/events?since=-1", "", 400, "since"},
		{"GET", "/v1/events?follow=perhaps", "", 400, "perhaps"},
		{"GET", "/v1/events?fast=true", "", 400, "fast: no such parameter"},
		{"POST", "/v1/fault", "", 400, `no fault ""`},
		{"POST", "/v1/fault", "null", 400, `no fault ""`},
		{"POST", "/v1/fault", "[]", 400, "bad request: json"},
		{"POST", "/v1/fault", `{"kind":`, 400, "bad request: unexpected EOF"},
		{"POST", "/v1/fault", `{"kind":"earthquake"}`, 400, `no fault "earthquake"`},
		{"POST", "/v1/fault", `{"kind":"unplug","when":1}`, 400, `unknown field "when"`},
		{"POST", "/v1/fault", `{"kind":"unplug","after":1e99}`, 400, "bad request: json"},
		{"POST", "/v1/fault", `{"kind":"unplug"} {"kind":"unplug"}`, 400, "more than one JSON value"},
		{"POST", "/v1/fault", `{"kind":"unplug"} x`, 400, "bad request: invalid character"},
		{"POST", "/v1/fault", `{"kind":"unplug","verb":"query_port"}`, 400, "unplug takes no verb"},
		{"POST", "/v1/fault", `{"kind":"replug","count":2}`, 400, "replug takes no after, count or verb"},
		{"POST", "/v1/fault", `{"kind":"unplug","device":"hard"}`, 404, `no device "hard"`},
		{"POST", "/v1/fault", `{"kind":"` + strings.Repeat("x", maxBody) + `"}`, 413, "too large"},
		{"POST", "/v1/fault", `{"kind":"unplug"}` + strings.Repeat(" ", maxBody), 413, "too large"},
		{"POST", "/v1/reset", "{}", 400, `unknown scope ""`},
		{"POST", "/v1/reset", `{"scope":"world"}`, 400, `unknown scope "world"`},
		{"POST", "/v1/reset", `{"scope":"qp","device":"soft"}`, 400, "not a device"},
		{"POST", "/v1/reset", `{"scope":"device","interface":"ib0"}`, 400, "all interfaces of the device"},
		{"POST", "/v1/reset", `{"scope":"cq","interface":"ib9"}`, 404, `no interface "ib9"`},
		{"POST", "/v1/recover", `{"device":"hard"}`, 404, `no device "hard"`},
		{"POST", "/v1/ping", `{"target":"10.0.0.2","size":56,"timeout_seconds":0}`, 400, "a timeout of 0s"},
		{"POST", "/v1/ping", `{"target":"10.0.0.2","size":56,"timeout_seconds":61}`, 400, "at most 1m0s"},
		{"POST", "/v1/ping", `{"target":"10.0.0.2","timeout_seconds":1,"interface":"ib9"}`, 404, `no interface "ib9"`},
		{"POST", "/v1/suspend", `{"now":true}`, 400, "unknown field"},
		{"POST", "/v1/resume", `"please"`, 400, "bad request"},
	} {
		code, text := raw(t, path, c.method, c.url, c.body)
		if code != c.code || !strings.Contains(text, c.text) {
			t.Errorf("%s %s %.40s: %d %q, want %d ...%q", c.method, c.url, c.body, code, text, c.code, c.text)
		}
	}
	if got := f.taken(); got != nil {
		t.Errorf("the daemon was ordered %q", got)
	}
}

func TestSeveralHaveToBeNamed(t *testing.T) {
	f := newFake()
	f.devices, f.ifaces = []string{"a", "b"}, nil
	path := serve(t, f)
	if code, text := raw(t, path, "POST", "/v1/recover", ""); code != 400 || !strings.Contains(text, "choose one with --device: a, b") {
		t.Errorf("%d %q", code, text)
	}
	if code, text := raw(t, path, "POST", "/v1/reset", `{"scope":"qp"}`); code != 404 || !strings.Contains(text, "there is no interface") {
		t.Errorf("%d %q", code, text)
	}
	if code, _ := raw(t, path, "POST", "/v1/recover", `{"device":"b"}`); code != 200 {
		t.Errorf("one that is named: %d", code)
	}
}

// An order to what is removed after the look-up is answered as if the name was not known. Any other order gets the
// daemon's error.
func TestOrdersToWhatIsRemoved(t *testing.T) {
	for _, c := range []struct{ url, body, text string }{
		{"/v1/fault", `{"kind":"unplug"}`, `not found: no device "soft"`},
		{"/v1/reset", `{"scope":"device","device":"soft"}`, `not found: no device "soft"`},
		{"/v1/recover", "", `not found: no device "soft"`},
		{"/v1/reset", `{"scope":"cq"}`, `not found: no interface "ib0"`},
		{"/v1/ping", `{"target":"10.0.0.2","timeout_seconds":1}`, `not found: no interface "ib0"`},
	} {
		for _, removed := range []bool{true, false} {
			f := newFake()
			f.work = func(context.Context) error {
				if removed {
					f.devices, f.ifaces = nil, nil
				}
				return errors.New("it has ended")
			}
			code, text := http.StatusConflict, "it has ended"
			if removed {
				code, text = http.StatusNotFound, c.text
			}
			if got, why := raw(t, serve(t, f), "POST", c.url, c.body); got != code || why != text {
				t.Errorf("%s %s, removed %t: %d %q, want %d %q", c.url, c.body, removed, got, why, code, text)
			}
		}
	}
}

// The client gets the daemon's own text for a refusal, with a status that fits.
func TestRefusalsOfTheDaemon(t *testing.T) {
	for err, code := range map[error]int{
		ErrInvalid: 400, hca.ErrInvalid: 400, ErrNotAllowed: 403, ErrNotFound: 404,
		ErrUnavailable: 503, context.Canceled: 503, context.DeadlineExceeded: 503, errors.New("the device is suspended"): 409,
	} {
		t.Run(err.Error(), func(t *testing.T) {
			f := newFake()
			f.err = fmt.Errorf("because: %w", err)
			path := serve(t, f)
			if got, text := raw(t, path, "POST", "/v1/suspend", ""); got != code || text != f.err.Error() {
				t.Errorf("%d %q, want %d", got, text, code)
			}
			want := "because: " + err.Error()
			if err := Post(t.Context(), path, &SuspendRequest{}); err == nil || err.Error() != want {
				t.Errorf("client: %v, want %s", err, want)
			}
		})
	}
}

// A daemon injects faults only if it was told so at its start.
func TestFaultsAreNotAllowed(t *testing.T) {
	f := newFake()
	f.forbid = true
	path := serve(t, f)
	if code, text := raw(t, path, "POST", "/v1/fault", `{"kind":"unplug"}`); code != 403 ||
		text != "not allowed: start the daemon with --allow-faults" {
		t.Errorf("%d %q", code, text)
	}
	if got := f.taken(); got != nil {
		t.Errorf("the daemon was ordered %q", got)
	}
}

func TestEveryFaultHasANameOfItsOwnAndAText(t *testing.T) {
	seen := map[string]bool{}
	for _, k := range FaultKinds() {
		if k.Name == "" || k.Text == "" || seen[k.Name] {
			t.Errorf("%+v", k)
		}
		seen[k.Name] = true
	}
	if len(seen) != int(faults.NumName) {
		t.Errorf("%d kinds", len(seen))
	}
}
