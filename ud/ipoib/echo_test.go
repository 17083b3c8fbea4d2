package ipoib

import (
	"bytes"
	"errors"
	"testing"
)

// The bytes of a request and of its reply.
func TestEchoBytes(t *testing.T) {
	for _, c := range []struct {
		echo Echo
		want []byte
	}{
		{Echo{ID: 0x0102030405060708}, []byte{0x88, 0xb6, 0, 0, 1, 1, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0}},
		{Echo{ID: 1, Reply: true}, []byte{0x88, 0xb6, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0}},
	} {
		if got := c.echo.Message(14); !bytes.Equal(got, c.want) {
			t.Errorf("%+v: %x, want %x", c.echo, got, c.want)
		}
		typ, body, err := ParseHeader(c.want)
		if err != nil || typ != EtherTypeEcho || typ.Carried() {
			t.Fatalf("%v, %v", typ, err)
		}
		if got, err := ParseEcho(body); err != nil || got != c.echo {
			t.Errorf("%+v, %v, want %+v", got, err, c.echo)
		}
		for n := range MinEcho {
			if _, err := ParseEcho(body[:n]); !errors.Is(err, ErrTruncated) {
				t.Errorf("%d bytes: %v", n, err)
			}
		}
		for i, wrong := range map[int]byte{0: 2, 1: 3} {
			bad := bytes.Clone(body)
			bad[i] = wrong
			if _, err := ParseEcho(bad); err == nil {
				t.Errorf("accepted %x", bad)
			}
		}
	}
}
