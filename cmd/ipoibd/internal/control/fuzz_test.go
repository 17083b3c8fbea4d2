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

// Whatever is sent is refused as bad, or is an order that names what there is.
func FuzzRequests(f *testing.F) {
	for _, seed := range []string{
		"", "{}", "null", "[[[", `{"kind":"unplug"}`, `{"kind":"verb_hangs","after":1,"count":2,"verb":"query_qp","device":"a"}`,
		`{"scope":"qp","interface":"ib0"}`, `{"scope":"device","device":"a"}`, `{"device":"b"}`, `{"scope":"cq"} {}`,
		`{"kind":"replug","count":1}`, `{"KIND":"unplug","kind":"unplug"}`, "{\"kind\":\"\xff\"}",
	} {
		f.Add(seed)
	}
	names := Names{Devices: []string{"a"}, Interfaces: []string{"ib0", "ib1"}}
	f.Fuzz(func(t *testing.T, body string) {
		if q, ok := accept[FaultRequest](t, body, names); ok {
			if _, known := findKind(q.Kind); !known || q.Device != "a" {
				t.Errorf("%+v", q)
			}
		}
		if q, ok := accept[ResetRequest](t, body, names); ok {
			if (q.Device == "a") == slices.Contains(names.Interfaces, q.Interface) {
				t.Errorf("%+v", q)
			}
		}
		if q, ok := accept[RecoverRequest](t, body, names); ok && q.Device != "a" {
			t.Errorf("%+v", q)
		}
		accept[bare](t, body, names)
	})
}

// accept decodes and resolves as an order does. What is accepted stays as it is
// when it is sent again.
func accept[Q any, P requestOf[Q]](t *testing.T, body string, names Names) (q Q, ok bool) {
	err := decodeRequest(strings.NewReader(body), &q)
	if err == nil {
		err = P(&q).resolve(names)
	}
	if err != nil {
		if !errors.Is(err, ErrInvalid) && !errors.Is(err, ErrNotFound) {
			t.Errorf("%q: %v", body, err)
		}
		return q, false
	}
	text, err := json.Marshal(q)
	if err != nil {
		t.Fatal(err)
	}
	var again Q
	if err := decodeRequest(strings.NewReader(string(text)), &again); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	if err := P(&again).resolve(names); err != nil || !reflect.DeepEqual(again, q) {
		t.Errorf("%+v becomes %+v, %v", q, again, err)
	}
	return q, true
}

func FuzzEventsQuery(f *testing.F) {
	for _, seed := range []string{"", "since=1&follow=true", "since=18446744073709551616", "follow=", "since", "a=%zz", "since=1&since=x"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		q, err := url.ParseQuery(text)
		if err != nil {
			return // net/url drops what it cannot read
		}
		if _, _, err := eventsQuery(q); err != nil && !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: %v", text, err)
		}
	})
}
