package config

import "testing"

func TestParseAddress(t *testing.T) {
	for s, ok := range map[string]bool{
		"10.9.0.1/24": true, "fd09::1/64": true, "10.9.0.1/32": true, "10.9.0.0/31": true, "fe80::1/64": true, "10.9.0.128/16": true,
		"10.9.0.1": false, "10.9.0.0/24": false, "10.9.0.255/24": false, "0.0.0.0/0": false, "::/0": false, "127.0.0.1/8": false, "::1/128": false,
		"224.0.0.1/4": false, "ff02::1/64": false, "::ffff:10.9.0.1/120": false, "fe80::1%eth0/64": false, "10.9.0.1/33": false, "": false, "ib0": false,
	} {
		if p, err := ParseAddress(s); (err == nil) != ok {
			t.Errorf("%q: %v, %v, want ok: %v", s, p, err, ok)
		}
	}
}

func TestParseRoute(t *testing.T) {
	for s, want := range map[string]string{
		"10.0.0.0/8 via 10.9.0.254": "10.0.0.0/8 10.9.0.254", "10.0.0.0/8": "10.0.0.0/8 invalid IP", "default via 10.9.0.254": "0.0.0.0/0 10.9.0.254",
		"default via fd09::fe": "::/0 fd09::fe", "  fd00::/8   via   fd09::fe ": "fd00::/8 fd09::fe", "::/0": "::/0 invalid IP",
		"default": "", "10.0.0.1/8": "", "10.0.0.0/8 via": "", "10.0.0.0/8 via fd09::fe": "", "10.0.0.0/8 via ib0": "", "224.0.0.0/4": "",
		"10.0.0.0/8 via 10.9.0.254 metric 5": "", "": "", "10.0.0.0/8 via 0.0.0.0": "",
	} {
		to, via, err := ParseRoute(s)
		if got := to.String() + " " + via.String(); (err == nil) != (want != "") || err == nil && got != want {
			t.Errorf("%q: %s, %v, want %q", s, got, err, want)
		}
	}
}
