package ipoib

import (
	"bytes"
	"testing"

	"ipoibd/hca"
)

func FuzzParseHeader(f *testing.F) {
	f.Add([]byte{})
	f.Add(unhex("0800 00"))
	f.Add(message(EtherTypeIPv4, udp4))
	f.Add(message(EtherTypeARP, arpBytes))
	f.Fuzz(func(t *testing.T, msg []byte) {
		typ, payload, err := ParseHeader(msg)
		if (err != nil) != (len(msg) < HeaderLen) {
			t.Fatalf("%d bytes: %v, want an error only if shorter than %d", len(msg), err, HeaderLen)
		}
		if err != nil {
			return
		}
		back := message(typ, payload)
		if !bytes.Equal(back[:2], msg[:2]) || !bytes.Equal(back[HeaderLen:], msg[HeaderLen:]) {
			t.Fatalf("% x of % x encodes differently", back, msg)
		}
		SourceIP(typ, payload)
		if dst, ok := DestIP(typ, payload); ok && dst.Is4() != (typ == EtherTypeIPv4) {
			t.Fatalf("%v: destination %v, want one of its own version", typ, dst)
		}
	})
}

func FuzzParseARP(f *testing.F) {
	f.Add(arpBytes)
	f.Add(append(bytes.Clone(arpBytes), 0))
	f.Add(arpBytes[:55])
	f.Add(etherARPBytes)
	f.Fuzz(func(t *testing.T, body []byte) {
		a, err := ParseARP(body)
		if err == nil && !bytes.Equal(a.Append(nil), body[:56]) {
			t.Fatalf("%+v of % x encodes differently", a, body)
		}
	})
}

func FuzzParseEtherARP(f *testing.F) {
	f.Add(etherARPBytes)
	f.Add(append(bytes.Clone(etherARPBytes), make([]byte, 18)...))
	f.Add(etherARPBytes[:27])
	f.Add(arpBytes)
	f.Fuzz(func(t *testing.T, body []byte) {
		a, err := ParseEtherARP(body)
		if err == nil && !bytes.Equal(a.Append(nil), body[:28]) {
			t.Fatalf("%+v of % x encodes differently", a, body)
		}
	})
}

// seedND adds the packets of testdata/nd.py to a corpus: unchanged, padded and
// cut.
func seedND(add func(packet []byte, form Form)) {
	for form, packets := range goldens() {
		for _, p := range packets {
			add(p, form)
			add(append(bytes.Clone(p), 0, 0), form)
			add(p[:len(p)-1], form)
		}
	}
}

// fuzzed returns the packet and its form. If mend is set, the IPv6 length and
// checksum are corrected, so that the fuzzer gets past these checks.
func fuzzed(packet []byte, ipoib, mend bool) ([]byte, Form) {
	if mend && len(packet) >= ndFlags && len(packet) <= maxIPv6Len {
		packet = mended(packet)
	}
	if ipoib {
		return packet, FormIPoIB
	}
	return packet, FormEther
}

func FuzzParseND(f *testing.F) {
	seedND(func(p []byte, form Form) { f.Add(p, form == FormIPoIB, true); f.Add(p, form == FormIPoIB, false) })
	f.Fuzz(func(t *testing.T, packet []byte, ipoib, mend bool) {
		packet, form := fuzzed(packet, ipoib, mend)
		nd, err := ParseND(packet, form)
		if err != nil {
			return
		}
		if !IsND(packet) {
			t.Fatal("IsND is false for a packet that parses")
		}
		_, isMAC := nd.Link.MAC()
		_, isAddr := nd.Link.IPoIB()
		there := nd.Link.Type != OptionNone
		if isMAC != (there && form == FormEther) || isAddr != (there && form == FormIPoIB) {
			t.Fatalf("form %d: %+v, want an address of this form", form, nd)
		}
	})
}

// total is a Mapper that maps every MAC to an address with the MAC in its GID.
type total struct{}

func (total) ToAddr(m MAC) (Addr, bool) {
	var gid hca.GID
	copy(gid[10:], m[:])
	return NewAddr(hca.QPN(m[5]), gid), true
}

func (total) ToMAC(a Addr) (MAC, bool) { return MAC(a[14:]), true }

// FuzzTranslateND checks that a translation parses, respects the limit and has
// the same contents, and that translating back restores the original.
func FuzzTranslateND(f *testing.F) {
	seedND(func(p []byte, form Form) {
		f.Add(p, form == FormIPoIB, true, uint16(roomy))
		f.Add(p, form == FormIPoIB, true, uint16(160))
		f.Add(p, form == FormIPoIB, false, uint16(roomy))
	})
	f.Fuzz(func(t *testing.T, packet []byte, ipoib, mend bool, limit uint16) {
		packet, form := fuzzed(packet, ipoib, mend)
		there, err := TranslateND(nil, packet, form, form.other(), int(limit), total{})
		if err != nil {
			return
		}
		if len(there) > int(limit) {
			t.Fatalf("a translation of %d bytes exceeds the limit %d", len(there), limit)
		}
		checkSameContents(t, packet, form, there)
		back := translate(t, there, form.other())
		if form == FormEther && !isCut(packet, there) {
			requireEqual(t, back, canonical(t, packet))
		}
		requireEqual(t, translate(t, back, form), there)
	})
}

// checkSameContents compares the contents of two packets, except for link-layer
// addresses.
func checkSameContents(t *testing.T, packet []byte, form Form, there []byte) {
	t.Helper()
	a, err := ParseND(packet, form)
	if err != nil {
		t.Fatal(err)
	}
	b, err := ParseND(there, form.other())
	if err != nil {
		t.Fatalf("the translation does not parse: %v", err)
	}
	if a.Link.Type != b.Link.Type {
		t.Fatalf("the translation changes option %d into %d", a.Link.Type, b.Link.Type)
	}
	a.Link, b.Link = LinkOption{}, LinkOption{}
	if a.Type != b.Type || a.Flags != b.Flags || a.Src != b.Src || a.Dst != b.Dst || a.Target != b.Target || a.links != b.links {
		t.Fatalf("the translation changes %+v into %+v", a, b)
	}
}

// isCut reports whether a Redirected Header was cut in the translation from the
// Ethernet form, in which every link-layer address option grows by 16 bytes.
func isCut(packet, there []byte) bool {
	nd, packet, _ := parseND(packet, FormEther)
	return len(there) != len(packet)+16*nd.links
}

// translate translates a valid packet into the other form.
func translate(t *testing.T, packet []byte, from Form) []byte {
	t.Helper()
	out, err := TranslateND(nil, packet, from, from.other(), maxIPv6Len, total{})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// canonical returns a packet without the bytes behind its payload and with its
// checksum as a sender computes it, because receivers do not distinguish 0000
// and ffff.
func canonical(t *testing.T, packet []byte) []byte {
	t.Helper()
	out, err := TranslateND(nil, packet, FormEther, FormEther, maxIPv6Len, total{})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func requireEqual(t *testing.T, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		t.Fatalf("got  % x\nwant % x", got, want)
	}
}
