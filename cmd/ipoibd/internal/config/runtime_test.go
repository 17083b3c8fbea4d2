package config

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// A request adds an interface, or replaces one that a request has added. It does not change its base.
func TestWithRuntime(t *testing.T) {
	c := twoByTwo(t)
	c.MetricsListen, c.Sandbox = "127.0.0.1:9471", true
	base := *c
	const request = `{"name": "pod1", "device": "a", "pkey": "0x8001", "mtu": 1300, "addresses": ["10.9.0.7/24"]}`
	want := NewInterface()
	want.Name, want.Device, want.PKey, want.MTU, want.Addresses = "pod1", "a", 0x8001, 1300, []string{"10.9.0.7/24"}
	want.SendWRs, want.RecvWRs = 128, 128
	next, err := c.WithRuntime([]byte(request))
	if err != nil || !reflect.DeepEqual(next.Interfaces[4], want) || next.Added["pod1"].Request != request || !reflect.DeepEqual(*c, base) || len(c.Interfaces) != 4 {
		t.Fatalf("%+v, %v; want %+v", next, err, want)
	}
	again, err := next.WithRuntime([]byte(`{"name": "pod1", "device": "b", "up": true}`))
	if err != nil || len(again.Interfaces) != 5 || again.Interfaces[4].Device != "b" || next.Interfaces[4].Device != "a" {
		t.Fatalf("%+v, %v", again, err)
	}
	gone, err := again.Without("pod1")
	if err != nil || !reflect.DeepEqual(gone.Interfaces, c.Interfaces) || len(gone.Added) > 0 {
		t.Errorf("%+v, %v", gone, err)
	}
	for _, name := range []string{"a0", "pod1"} {
		if _, err := gone.Without(name); err == nil {
			t.Errorf("%s was removed", name)
		}
	}
	one := twoByTwo(t)
	one.Devices, one.Interfaces = one.Devices[1:], one.Interfaces[2:]
	if next, err := one.WithRuntime([]byte(`{"name": "x"}`)); err != nil || next.Interfaces[2].Device != "b" {
		t.Errorf("the only device: %+v, %v", next, err)
	}
}

func TestMistakesInRequests(t *testing.T) {
	for text, want := range map[string]string{
		``:                              "not a JSON object",
		`{`:                             "not a JSON object",
		`name: x`:                       "not a JSON object",
		`{"name": "x"} {}`:              "not a JSON object",
		`[]`:                            "must be a mapping of fields",
		`7`:                             "must be a mapping of fields",
		`null`:                          "must be a mapping of fields",
		`{}`:                            "name: \"\" is not an interface's name",
		`{"name": "a0", "device": "a"}`: "name: the configuration has an interface a0 already; choose another name",
		`{"name": "x"}`:                 `device: no device "" is configured; choose`,
		`{"name": "x", "device": "a", "mtuu": 7}`:                      "mtuu: unknown field; did you mean mtu?",
		`{"name": "x", "device": "a", "mtu": 7}`:                       "mtu: 7 is out of range (68 to 4092)",
		`{"name": "x", "device": "a", "mtu": "big"}`:                   "mtu: must be a whole number",
		`{"name": "x", "device": "a", "pkey": 5}`:                      "pkey: 0x8005 is not among the pkeys",
		`{"name": "x", "device": "a", "mtu": 1300, "mtu": 1400}`:       "mtu: is set twice",
		`{"name": "x", "device": "a", "addresses": ["10.0.0.0/8", 7]}`: "addresses[0]: 10.0.0.0/8 is the first",
	} {
		_, err := twoByTwo(t).WithRuntime([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "[4]") {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// A reload keeps the interfaces that were added at run time. One that the file has becomes the
// file's; one whose device or P_Key is gone is a mistake.
func TestWithRuntimeOf(t *testing.T) {
	now := twoByTwo(t)
	for _, text := range []string{`{"name": "p", "device": "a", "pkey": "0x8001"}`, `{"name": "q", "device": "b"}`} {
		var err error
		if now, err = now.WithRuntime([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	names := func(c *Config) (out []string) {
		for _, f := range c.Interfaces {
			out = append(out, f.Name)
		}
		return out
	}
	file := twoByTwo(t)
	file.Interfaces[0].Name = "q"
	next, err := file.WithRuntimeOf(now)
	if _, restart := MakePlan(now, next); restart != nil {
		t.Errorf("only a restart can carry this out: %v", restart)
	}
	if err != nil || !slices.Equal(names(next), []string{"q", "a1", "b0", "b1", "p"}) || next.Runtime("q") || !next.Runtime("p") || len(next.Added) != 1 {
		t.Errorf("%+v, %v", next, err)
	}
	file = twoByTwo(t)
	file.Devices[0].PKeys, file.Interfaces = file.Devices[0].PKeys[:1], file.Interfaces[:1]
	_, err = file.WithRuntimeOf(now)
	if ms, ok := errors.AsType[Mistakes](err); !ok || len(ms) != 1 || !strings.HasPrefix(ms[0].Error(), "interface p (added at run time).pkey: 0x8001 is not among") {
		t.Errorf("error %v", err)
	}
}

func FuzzWithRuntime(f *testing.F) {
	f.Add([]byte(`{"name": "x", "device": "a", "gid_index": 3, "routes": ["10.0.0.0/8"]}`))
	f.Add([]byte(`{"name": "x", "device": "a", "addresses": [[{}]], "up": null}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		c := twoByTwo(t)
		next, err := c.WithRuntime(text)
		if err == nil && (next.Validate() != nil || len(next.Interfaces) != 5) {
			t.Errorf("%+v: %v", next, next.Validate())
		}
	})
}

// What can only change with a restart is the same in each configuration that follows from another one.
func TestRuntimeKeepsTheRest(t *testing.T) {
	own := New()
	own.MetricsListen = "127.0.0.1:9471"
	c := Single(own, NewDevice(), NewInterface())
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	with, err := c.WithRuntime([]byte(`{"name": "ib1", "pkey": "0xffff"}`))
	if err != nil {
		t.Fatal(err)
	}
	again, err := c.WithRuntimeOf(with)
	if err != nil {
		t.Fatal(err)
	}
	without, err := with.Without("ib1")
	if err != nil {
		t.Fatal(err)
	}
	for _, next := range []*Config{with, again, without} {
		if _, err := MakePlan(c, next); err != nil {
			t.Error(err)
		}
	}
}
