package protocol_test

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"

	"ipoibd/scripts/vm/protocol"
)

func TestRoundTrip(t *testing.T) {
	var wire bytes.Buffer
	sent := []protocol.Request{
		{ID: 1, Start: &protocol.Start{Args: []string{"a", "b\n"}, Env: []string{"X=1"}}},
		{ID: 2, Signal: &protocol.Signal{ID: 1, Number: 9}},
		{ID: 3, Put: &protocol.Put{Path: "/x", Data: bytes.Repeat([]byte{0xff}, protocol.MaxChunk), Append: true, Mode: 0o755}},
	}
	for _, r := range sent {
		if err := protocol.Write(&wire, r); err != nil {
			t.Fatal(err)
		}
	}
	in := protocol.NewReader(&wire)
	for _, want := range sent {
		var got protocol.Request
		if err := in.Read(&got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("request %d: %v, or it changed on the way", want.ID, err)
		}
	}
	if err := in.Read(new(protocol.Request)); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
}

func TestReadRefuses(t *testing.T) {
	for name, wire := range map[string]string{"no JSON": "hello\n", "too long": strings.Repeat("x", 1<<20)} {
		if err := protocol.NewReader(strings.NewReader(wire)).Read(new(protocol.Reply)); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%s: %v, want an error other than EOF", name, err)
		}
	}
}
