package cni

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"pgregory.net/rapid"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/link"
)

// Different attachments have different names and owners, also if their parts joined are the same. The
// names are those of interfaces, and an owner leads back to its attachment.
func TestNames(t *testing.T) {
	valid := regexp.MustCompile(`^cni[a-z2-7]{12}$`)
	seen := map[string]attachment{}
	part := rapid.StringMatching(`[a-zA-Z0-9][a-zA-Z0-9_.\-]{0,3}`)
	rapid.Check(t, func(t *rapid.T) {
		a := attachment{part.Draw(t, "network"), part.Draw(t, "container"), part.Draw(t, "name")}
		if other, taken := seen[a.name()]; taken && other != a || !valid.MatchString(a.name()) {
			t.Fatalf("%+v and %+v are both %s", a, other, a.name())
		}
		seen[a.name()] = a
		if back, ok := parseOwner(a.owner()); !ok || back != a {
			t.Fatalf("%+v became %+v", a, back)
		}
	})
	if a, b := (attachment{"a", "bc", "d"}), (attachment{"ab", "c", "d"}); a.name() == b.name() {
		t.Error("the parts are joined without a separator")
	}
	for _, owner := range []string{"", "cni", "cni/a/b", "cni/a/b/c/d", "vm/a/b/c"} {
		if a, ok := parseOwner(owner); ok {
			t.Errorf("%q: %+v", owner, a)
		}
	}
}

func TestInterfaceNames(t *testing.T) {
	for name, want := range map[string]bool{"net1": true, "ib0.8001": true, "å": true, "ib%d": false, "a\x1bb": false, "a\x00": false, "\xff": false, "\u202e": false} {
		if got := validIfName(name); got != want {
			t.Errorf("%q: %t", name, got)
		}
	}
}

// Only interfaces of the network that were added at run time, and whose attachments are not valid, are
// garbage.
func TestGarbage(t *testing.T) {
	list := []report.Interface{
		{Name: "kept", Owner: "cni/fabric/x/net1", Runtime: true},
		{Name: "other name", Owner: "cni/fabric/x/net2", Runtime: true},
		{Name: "other container", Owner: "cni/fabric/y/net1", Runtime: true},
		{Name: "other network", Owner: "cni/fabric2/y/net1", Runtime: true},
		{Name: "the operator's", Owner: "cni/fabric/y/net1"},
		{Name: "of a VM", Owner: "vm/fabric/y/net1", Runtime: true},
		{Name: "ib0"},
	}
	got := garbage(list, "fabric", []types.GCAttachment{{ContainerID: "x", IfName: "net1"}})
	if want := []string{"other name", "other container"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// The daemon accepts what it is asked for.
func TestDefinition(t *testing.T) {
	c, err := parseConf([]byte(`{"device": "soft", "pkey": "0x8001", "mtu": 1300}`))
	if err != nil {
		t.Fatal(err)
	}
	a := attachment{"fabric", strings.Repeat("c", 64), "net1"}
	text, err := define(c, a, "/run/netns/x", link.Assignment{
		Addrs:  []netip.Prefix{netip.MustParsePrefix("10.9.0.7/24"), netip.MustParsePrefix("fd09::7/64")},
		Routes: []link.Route{{To: netip.MustParsePrefix("10.0.0.0/8"), Via: netip.MustParseAddr("10.9.0.1")}, {To: netip.MustParsePrefix("fd00::/8")}},
	})
	if err != nil || !json.Valid(text) {
		t.Fatalf("%s, %v", text, err)
	}
	daemon, err := config.Parse("x.yaml", []byte("lend: true\ndevices: [{name: soft, underlay: eth0, pkeys: [0x8001]}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	next, err := daemon.WithRuntime(text)
	if err != nil {
		t.Fatal(err)
	}
	want := config.NewInterface()
	want.Name, want.Device, want.PKey, want.MTU, want.Netns, want.Netdev, want.Owner = a.name(), "soft", 0x8001, 1300, "/run/netns/x", "net1", a.owner()
	want.Addresses, want.Routes = []string{"10.9.0.7/24", "fd09::7/64"}, []string{"10.0.0.0/8 via 10.9.0.1", "fd00::/8"}
	want.Up, want.SourceCheck = true, true
	want.SendWRs, want.RecvWRs = 128, 128
	if !reflect.DeepEqual(next.Interfaces[0], want) || next.Added[want.Name].Request != string(text) {
		t.Errorf("%+v, want %+v", next, want)
	}
}
