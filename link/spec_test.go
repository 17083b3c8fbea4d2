package link_test

import (
	"errors"
	"testing"

	"pgregory.net/rapid"

	"ipoibd/link"
)

func TestSpecValidate(t *testing.T) {
	good := spec("ib0")
	for _, c := range []struct {
		what   string
		change func(*link.Spec)
		ok     bool
	}{
		{"unchanged", func(*link.Spec) {}, true},
		{"15 bytes", func(s *link.Spec) { s.Name = "abcdefghijklmno" }, true},
		{"16 bytes", func(s *link.Spec) { s.Name = "abcdefghijklmnop" }, false},
		{"no name", func(s *link.Spec) { s.Name = "" }, false},
		{"dot", func(s *link.Spec) { s.Name = "." }, false},
		{"dots", func(s *link.Spec) { s.Name = ".." }, false},
		{"slash", func(s *link.Spec) { s.Name = "a/b" }, false},
		{"template", func(s *link.Spec) { s.Name = "ib%d" }, false},
		{"space", func(s *link.Spec) { s.Name = "ib 0" }, false},
		{"zero byte", func(s *link.Spec) { s.Name = "ib\x000" }, false},
		{"group MAC", func(s *link.Spec) { s.MAC[0] |= 1 }, false},
		{"no MAC", func(s *link.Spec) { s.MAC = [6]byte{} }, false},
		{"least MTU", func(s *link.Spec) { s.MTU = link.MinMTU }, true},
		{"MTU below", func(s *link.Spec) { s.MTU = link.MinMTU - 1 }, false},
		{"most MTU", func(s *link.Spec) { s.MTU = link.MaxMTU }, true},
		{"MTU above", func(s *link.Spec) { s.MTU = link.MaxMTU + 1 }, false},
		{"default queue", func(s *link.Spec) { s.TxQueueLen = 0 }, true},
		{"negative queue", func(s *link.Spec) { s.TxQueueLen = -1 }, false},
	} {
		s := good
		c.change(&s)
		err := s.Validate()
		if c.ok && err != nil || !c.ok && !errors.Is(err, link.ErrSpec) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
	if _, _, err := link.Open(link.Spec{}); !errors.Is(err, link.ErrSpec) {
		t.Errorf("Open of a zero spec: %v, want ErrSpec", err)
	}
	if err := link.Delete("a/b"); !errors.Is(err, link.ErrSpec) {
		t.Errorf("Delete: %v, want ErrSpec", err)
	}
}

// Peers remember the MAC, so its exact value must not change.
func TestMACForIsStable(t *testing.T) {
	guid := [8]byte{0x02, 0x00, 0x5e, 0xff, 0xfe, 0x00, 0x53, 0x01}
	want := [6]byte{0xbe, 0xf1, 0x3d, 0x06, 0x14, 0x15}
	if got := link.MACFor(guid, 0xffff, "ib0"); got != want {
		t.Errorf("MACFor = % x, want % x", got, want)
	}
}

func TestMACForProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		guid := [8]byte(rapid.SliceOfN(rapid.Byte(), 8, 8).Draw(t, "guid"))
		pkey := rapid.Uint16().Draw(t, "pkey")
		name := rapid.StringMatching(`[a-z][a-z0-9.]{0,14}`).Draw(t, "name")
		mac := link.MACFor(guid, pkey, name)
		if mac[0]&3 != 2 {
			t.Errorf("% x is not a local MAC of a station", mac)
		}
		others := [][6]byte{
			link.MACFor(guid, pkey^1, name),
			link.MACFor(guid, pkey, name+"x"),
			link.MACFor([8]byte{0: guid[0] ^ 1}, pkey, name),
		}
		for _, o := range others {
			if o == mac {
				t.Errorf("another interface has the same MAC % x", mac)
			}
		}
	})
}
