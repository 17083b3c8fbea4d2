package cni

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	current "github.com/containernetworking/cni/pkg/types/100"
)

func parseResult(tb testing.TB, text string) *current.Result {
	tb.Helper()
	var r current.Result
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		tb.Fatal(err)
	}
	return &r
}

// Routes without a gateway get that of the first address of their family that has one. Addresses of
// other interfaces do not count.
func TestLayout(t *testing.T) {
	const ips = `"ips": [{"address": "10.9.0.7/24"}, {"address": "10.9.1.7/24", "gateway": "10.9.1.1", "interface": 1}, {"address": "fd09::7/64", "interface": 1}], `
	for _, c := range []struct {
		text  string
		index int
		want  string
	}{
		{`{}`, anyInterface, `[] []`},
		{`{` + ips + `"routes": []}`, anyInterface, `[10.9.0.7/24 10.9.1.7/24 fd09::7/64] []`},
		{`{` + ips + `"routes": [{"dst": "10.0.0.0/8"}, {"dst": "fd00::/8"}, {"dst": "10.0.0.0/8"}]}`, anyInterface, `[10.9.0.7/24 10.9.1.7/24 fd09::7/64] [10.0.0.0/8 via 10.9.1.1 fd00::/8]`},
		{`{` + ips + `"routes": [{"dst": "0.0.0.0/0", "gw": "10.9.0.254"}, {"dst": "10.1.2.3/8", "gw": "0.0.0.0"}]}`, 1, `[10.9.1.7/24 fd09::7/64] [0.0.0.0/0 via 10.9.0.254 10.0.0.0/8]`},
		{`{` + ips + `"routes": []}`, 0, `[] []`},
		{`{"ips": [null]}`, anyInterface, `ips[0]: null`},
		{`{"routes": [null]}`, anyInterface, `routes[0]: null`},
		{`{"ips": [{}]}`, anyInterface, `ips[0]: `},
		{`{"routes": [{}]}`, anyInterface, `routes[0]: `},
		{`{"routes": [{"dst": "10.0.0.0/8", "table": 7}]}`, anyInterface, `only dst and gw are supported`},
		{`{"routes": [{"dst": "10.0.0.0/8", "mtu": 1000}]}`, anyInterface, `only dst and gw are supported`},
	} {
		l, err := layoutOf(parseResult(t, c.text), c.index)
		got := fmt.Sprint(l.Addrs, " ", l.Routes)
		if err != nil {
			got = err.Error()
		}
		if err == nil && got != c.want || err != nil && !strings.Contains(got, c.want) {
			t.Errorf("%s: %s, want %s", c.text, got, c.want)
		}
	}
}

// The result has what the IPAM plugin gave, all of it on the interface, in every version.
func TestResult(t *testing.T) {
	given := parseResult(t, `{"cniVersion": "1.0.0", "ips": [{"address": "10.9.0.7/24", "gateway": "10.9.0.1", "interface": 5}], "routes": [{"dst": "10.0.0.0/8"}], "dns": {"domain": "x"}}`)
	r := resultOf(given, attachment{"fabric", "x", "net1"}, "/run/netns/x", &device{mac: "02:00:00:00:00:07", mtu: 1444})
	for version, want := range map[string]string{
		"1.1.0": `{"cniVersion":"1.1.0","dns":{"domain":"x"},"interfaces":[{"name":"net1","mac":"02:00:00:00:00:07","mtu":1444,"sandbox":"/run/netns/x"}],"ips":[{"interface":0,"address":"10.9.0.7/24","gateway":"10.9.0.1"}],"routes":[{"dst":"10.0.0.0/8"}]}`,
		"0.4.0": `{"cniVersion":"0.4.0","dns":{"domain":"x"},"interfaces":[{"name":"net1","mac":"02:00:00:00:00:07","sandbox":"/run/netns/x"}],"ips":[{"version":"4","interface":0,"address":"10.9.0.7/24","gateway":"10.9.0.1"}],"routes":[{"dst":"10.0.0.0/8"}]}`,
	} {
		in, err := r.GetAsVersion(version)
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		var got, wanted any
		if json.Unmarshal(text, &got) != nil || json.Unmarshal([]byte(want), &wanted) != nil || fmt.Sprint(got) != fmt.Sprint(wanted) {
			t.Errorf("version %s: %s, want %s", version, text, want)
		}
	}
}

// Previous results that lie, or are damaged, are refused, and none makes the plugin panic.
func FuzzExpect(f *testing.F) {
	for _, text := range []string{
		`{}`, `{"interfaces": [null], "ips": [null], "routes": [null]}`,
		`{"interfaces": [{"name": "net1", "mac": "x", "sandbox": "/x"}], "ips": [{"interface": 0, "address": "10.9.0.7/24"}], "routes": [{"dst": "10.0.0.0/8"}]}`,
		`{"interfaces": [{"name": "net1", "sandbox": "/x"}], "ips": [{"interface": -1, "address": "10.9.0.7/24"}, {"interface": 99}]}`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var r current.Result
		if json.Unmarshal([]byte(text), &r) != nil {
			return
		}
		a := attachment{"fabric", "x", "net1"}
		mac, l, err := expect(&r, a, "/x")
		if err != nil {
			return
		}
		if missing := (*device)(nil).lacks(l); missing == nil {
			t.Errorf("no interface lacks nothing: %s", mac)
		}
		seen := &device{mac: mac, up: true, carrier: true, addrs: l.Addrs, routes: l.Routes}
		if missing := seen.lacks(l); missing != nil {
			t.Errorf("%s lacks %v", text, missing)
		}
	})
}

// The newest version that both sides know is used.
func TestNewest(t *testing.T) {
	for _, c := range []struct {
		versions []string
		limit    string
		want     string
	}{
		{[]string{"0.3.1", "1.0.0", "0.4.0"}, "1.1.0", "1.0.0"},
		{[]string{"0.4.0", "1.0.0", "1.1.0"}, "0.4.0", "0.4.0"},
		{[]string{"1.1.0"}, "1.0.0", ""},
		{nil, "1.1.0", ""},
		{[]string{"x"}, "1.1.0", ""},
	} {
		if got, err := newest(c.versions, c.limit); got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%v up to %s: %q, %v", c.versions, c.limit, got, err)
		}
	}
}

// The IPAM plugin gets the configuration in its own version, with the previous result and with all
// other fields.
func TestInVersion(t *testing.T) {
	c, err := parseConf([]byte(`{"cniVersion": "1.1.0", "name": "fabric", "ipam": {"type": "static", "x": [1]}, "prevResult": {"cniVersion": "1.1.0", "ips": [{"address": "10.9.0.7/24"}]}}`))
	if err != nil {
		t.Fatal(err)
	}
	text, err := inVersion(c, "0.4.0")
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		CNIVersion string
		Name       string
		IPAM       struct{ X []int }
		PrevResult struct {
			CNIVersion string
			IPs        []struct{ Version string }
		}
	}
	if err := json.Unmarshal(text, &got); err != nil || got.CNIVersion != "0.4.0" || got.Name != "fabric" || len(got.IPAM.X) != 1 || got.PrevResult.CNIVersion != "0.4.0" || got.PrevResult.IPs[0].Version != "4" {
		t.Errorf("%s, %v", text, err)
	}
}
