package control

import (
	"encoding/json"
	"errors"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// A body is refused as bad, or it is an order whose names exist.
func FuzzRequests(f *testing.F) {
	for _, seed := range []string{
		"", "{}", "null", "[[[", `{"kind":"unplug"}`, `{"kind":"verb_hangs","after":1,"count":2,"verb":"query_qp","device":"a"}`,
		`{"scope":"qp","interface":"ib0"}`, `{"scope":"device","device":"a"}`, `{"device":"b"}`, `{"scope":"cq"} {}`,
		`{"kind":"replug","count":1}`, `{"KIND":"unplug","kind":"unplug"}`, "{\"kind\":\"\xff\"}",
	} {
		f.Add(seed)
	}
	d := newFake()
	d.devices, d.ifaces = []string{"a"}, []string{"ib0", "ib1"}
	f.Fuzz(func(t *testing.T, body string) {
		for _, newRequest := range requests {
			ok := true
			switch q := accept(t, body, d.daemon(), newRequest).(type) {
			case *FaultRequest:
				ok = q.Device == "a" && slices.ContainsFunc(FaultKinds(), func(k FaultKind) bool { return k.Name == q.Kind })
			case *ResetRequest:
				ok = (q.Device == "a") != slices.Contains(d.ifaces, q.Interface)
			case *RecoverRequest:
				ok = q.Device == "a"
			}
			if !ok {
				t.Errorf("%q was accepted for %s", body, newRequest().url())
			}
		}
	})
}

// accept decodes and checks as the server does. It returns nil if the request is refused.
// An accepted request stays the same when it is sent again.
func accept(t *testing.T, body string, d Daemon, newRequest func() Request) Request {
	q, again := newRequest(), newRequest()
	err := decodeRequest(strings.NewReader(body), q)
	if err == nil {
		_, err = q.order(d)
	}
	if err != nil {
		if !errors.Is(err, ErrInvalid) && !errors.Is(err, ErrNotFound) {
			t.Errorf("%q: %v", body, err)
		}
		return nil
	}
	text, err := json.Marshal(q)
	if err != nil {
		t.Fatal(err)
	}
	if err := decodeRequest(strings.NewReader(string(text)), again); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	if _, err := again.order(d); err != nil || !reflect.DeepEqual(again, q) {
		t.Errorf("%+v becomes %+v, %v", q, again, err)
	}
	return q
}

func FuzzEventsQuery(f *testing.F) {
	for _, seed := range []string{"", "since=1&follow=true", "since=18446744073709551616", "follow=", "since", "a=%zz", "since=1&since=x"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		q, err := url.ParseQuery(text)
		if err != nil {
			return // net/url drops invalid parameters
		}
		if _, _, err := eventsQuery(q); err != nil && !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: %v", text, err)
		}
	})
}
