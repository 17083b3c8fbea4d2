package ipoib

import (
	_ "embed"
	"encoding/hex"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"ipoibd/hca"
)

// ndText holds packets made by scapy, see testdata/nd.py.
//
//go:embed testdata/nd.txt
var ndText string

var formNames = map[string]Form{"ether": FormEther, "ipoib": FormIPoIB}

// ndNames are the messages of ndText.
var ndNames = slices.Sorted(maps.Keys(goldens()[FormEther]))

// goldens returns the packets of ndText by form and name.
func goldens() map[Form]map[string][]byte {
	out := map[Form]map[string][]byte{FormEther: {}, FormIPoIB: {}}
	for line := range strings.Lines(ndText) {
		f := strings.Fields(line)
		out[formNames[f[1]]][f[0]] = unhex(f[2])
	}
	return out
}

// golden returns a fresh copy of one packet of ndText.
func golden(t testing.TB, name string, form Form) []byte {
	t.Helper()
	p, ok := goldens()[form][name]
	if !ok {
		t.Fatalf("testdata/nd.txt has no %q in form %d", name, form)
	}
	return p
}

// unhex decodes hexadecimal and ignores blanks.
func unhex(s string) []byte {
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		panic(err)
	}
	return b
}

// The nodes of testdata/nd.py.
var (
	macA  = MAC{0x02, 0, 0, 0, 0, 0x0a}
	macB  = MAC{0x02, 0, 0, 0, 0, 0x0b}
	gidA  = hca.GIDFromAddr(ip("fe80::200:ff:fe00:a"))
	gidB  = hca.GIDFromAddr(ip("fe80::200:ff:fe00:b"))
	addrA = NewAddr(0x48, gidA)
	addrB = NewAddr(0x12ab49, gidB)
)

func ip(s string) netip.Addr { return netip.MustParseAddr(s) }

// pairs is a Mapper of the addresses in it.
type pairs map[MAC]Addr

var known = pairs{macA: addrA, macB: addrB}

func (p pairs) ToAddr(m MAC) (Addr, bool) {
	a, ok := p[m]
	return a, ok
}

func (p pairs) ToMAC(a Addr) (MAC, bool) {
	for m, b := range p {
		if b.QPN() == a.QPN() && b.GID() == a.GID() {
			return m, true
		}
	}
	return MAC{}, false
}

// other returns the form that is not f.
func (f Form) other() Form { return FormEther + FormIPoIB - f }

// roomy is a limit above the length of every test packet.
const roomy = 2044
