package ipoib

import (
	"bytes"
	"errors"
	"testing"
)

func TestPutHeaderExactBytes(t *testing.T) {
	for typ, want := range map[EtherType]string{
		EtherTypeIPv4: "0800 0000", EtherTypeARP: "0806 0000",
		EtherTypeRARP: "8035 0000", EtherTypeIPv6: "86dd 0000",
	} {
		got := bytes.Repeat([]byte{0xee}, HeaderLen+1)
		PutHeader(got, typ)
		if !bytes.Equal(got, append(unhex(want), 0xee)) {
			t.Errorf("%v: got % x, want %s and ee untouched", typ, got, want)
		}
	}
}

func TestPutHeaderShortPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a header fit into 3 bytes")
		}
	}()
	PutHeader(make([]byte, HeaderLen-1), EtherTypeIPv4)
}

func TestParseHeader(t *testing.T) {
	msg := unhex("86dd 0000 0102")
	typ, payload, err := ParseHeader(msg)
	if err != nil || typ != EtherTypeIPv6 || !bytes.Equal(payload, []byte{1, 2}) {
		t.Fatalf("got %v, % x, %v, want IPv6 with 01 02", typ, payload, err)
	}
	if &payload[0] != &msg[HeaderLen] {
		t.Error("the payload does not alias the message")
	}
}

func TestParseHeaderTruncated(t *testing.T) {
	for n := range HeaderLen {
		if _, _, err := ParseHeader(make([]byte, n)); !errors.Is(err, ErrTruncated) {
			t.Errorf("%d bytes: got %v, want ErrTruncated", n, err)
		}
	}
}

func TestEtherTypeCarried(t *testing.T) {
	carried := map[EtherType]bool{0x0800: true, 0x0806: true, 0x8035: true, 0x86dd: true}
	for typ := range 0x10000 {
		if got := EtherType(typ).Carried(); got != carried[EtherType(typ)] {
			t.Errorf("0x%04x: carried %t, want %t", typ, got, carried[EtherType(typ)])
		}
	}
}

func TestEtherTypeString(t *testing.T) {
	if got := EtherTypeRARP.String(); got != "0x8035" {
		t.Errorf("got %q, want 0x8035", got)
	}
}
