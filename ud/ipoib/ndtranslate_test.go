package ipoib

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
)

// TestTranslateNDExactBytes compares translations with scapy's encoding of the
// same messages.
func TestTranslateNDExactBytes(t *testing.T) {
	eachND(t, func(t *testing.T, name string, form Form, packet []byte) {
		got, err := TranslateND([]byte("head"), append(packet, 0xee), form, form.other(), roomy, known)
		want := append([]byte("head"), golden(t, name, form.other())...)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("got % x, %v\nwant % x", got, err, want)
		}
	})
}

func TestTranslateNDIntoSameForm(t *testing.T) {
	eachND(t, func(t *testing.T, _ string, form Form, packet []byte) {
		got, err := TranslateND(nil, packet, form, form, roomy, pairs{})
		if err != nil || !bytes.Equal(got, packet) {
			t.Errorf("got % x, %v\nwant % x", got, err, packet)
		}
	})
}

// TestTranslateNDWrongForm checks that TranslateND never guesses the form.
func TestTranslateNDWrongForm(t *testing.T) {
	eachND(t, func(t *testing.T, name string, form Form, packet []byte) {
		if ndWant[name].option == OptionNone {
			return
		}
		if _, err := TranslateND(nil, packet, form.other(), form, roomy, known); !errors.Is(err, ErrOption) {
			t.Errorf("got %v, want ErrOption", err)
		}
	})
}

func TestTranslateNDUnmapped(t *testing.T) {
	eachND(t, func(t *testing.T, name string, form Form, packet []byte) {
		got, err := TranslateND([]byte("x"), packet, form, form.other(), roomy, pairs{})
		want := ErrUnmapped
		if ndWant[name].option == OptionNone {
			want = nil
		}
		if !errors.Is(err, want) || want != nil && string(got) != "x" {
			t.Errorf("got %q, %v; want %v", got, err, want)
		}
	})
}

// TestTranslateNDEveryLinkOption checks that the option that receivers ignore is
// rewritten too: 20 bytes of the fabric must not reach an Ethernet host.
func TestTranslateNDEveryLinkOption(t *testing.T) {
	packet := mended(append(golden(t, "ns", FormIPoIB), appendLinkOption(nil, OptionTargetLink, addrB)...))
	got, err := TranslateND(nil, packet, FormIPoIB, FormEther, roomy, known)
	want := mended(append(golden(t, "ns", FormEther), 2, 1, 0x02, 0, 0, 0, 0, 0x0b))
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("got % x, %v\nwant % x", got, err, want)
	}
}

// TestTranslateNDLimit cuts a Redirect to each length. Its Redirected Header has
// 120 bytes behind 40 + 40 + 24 and is useful from 56 bytes on.
func TestTranslateNDLimit(t *testing.T) {
	const before, header, useful = 40 + 40 + 24, 120, 56
	packet := golden(t, "redirect", FormEther)
	for limit := range before + header + 10 {
		got, err := TranslateND(nil, packet, FormEther, FormIPoIB, limit, known)
		if limit < before {
			if !errors.Is(err, ErrTooLong) {
				t.Errorf("limit %d: got %d bytes, %v; want ErrTooLong", limit, len(got), err)
			}
			continue
		}
		left := min(header, (limit-before)/8*8)
		if left < useful {
			left = 0
		}
		checkCut(t, fmt.Sprintf("limit %d", limit), got, err, before+left)
	}
}

// checkCut checks a Redirect of 40 + 40 + 24 bytes before its Redirected Header.
func checkCut(t *testing.T, name string, got []byte, err error, wantLen int) {
	t.Helper()
	if err != nil || len(got) != wantLen {
		t.Errorf("%s: got %d bytes, %v; want %d", name, len(got), err, wantLen)
		return
	}
	if nd, err := ParseND(got, FormIPoIB); err != nil || nd.Link.Type != OptionTargetLink {
		t.Errorf("%s: result parses as %+v, %v", name, nd, err)
	}
	whole := golden(t, "redirect", FormIPoIB)
	if wantLen > 112 && !bytes.Equal(got[112:], whole[112:wantLen]) {
		t.Errorf("%s: the rest of the Redirected Header changed", name)
	}
}

func TestTranslateNDTooLongWithoutRedirectedHeader(t *testing.T) {
	packet := golden(t, "ra", FormEther)
	want := len(golden(t, "ra", FormIPoIB))
	if got, err := TranslateND(nil, packet, FormEther, FormIPoIB, want, known); err != nil || len(got) != want {
		t.Errorf("limit %d: got %d bytes, %v", want, len(got), err)
	}
	if _, err := TranslateND(nil, packet, FormEther, FormIPoIB, want-1, known); !errors.Is(err, ErrTooLong) {
		t.Errorf("limit %d: got %v, want ErrTooLong", want-1, err)
	}
}

// TestTranslateNDLongestPacket checks that the IPv6 length cannot wrap, whatever
// limit is given.
func TestTranslateNDLongestPacket(t *testing.T) {
	packet := golden(t, "rs", FormEther)
	for len(packet) < 40+0xffff-8 {
		packet = append(packet, 2, 1, 0x02, 0, 0, 0, 0, 0x0a) // never counts, always grows
	}
	if _, err := TranslateND(nil, mended(packet), FormEther, FormIPoIB, 1<<30, known); !errors.Is(err, ErrTooLong) {
		t.Errorf("got %v, want ErrTooLong", err)
	}
}

// TestTranslateNDKeepsInput checks that the source packet is not written to.
func TestTranslateNDKeepsInput(t *testing.T) {
	eachND(t, func(t *testing.T, _ string, form Form, packet []byte) {
		before := bytes.Clone(packet)
		if _, err := TranslateND(nil, packet, form, form.other(), 170, known); err != nil && !errors.Is(err, ErrTooLong) {
			t.Error(err)
		}
		if !bytes.Equal(packet, before) {
			t.Error("the packet changed")
		}
	})
}
