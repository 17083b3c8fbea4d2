package ibwire

import (
	"bytes"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

func TestFrame(t *testing.T) {
	for body, size := range map[string]int{"": etherMin, "abc": etherMin, strings.Repeat("a", 46): 60, strings.Repeat("a", 47): 61} {
		frame := Frame(TypePacket, []byte(body))
		etherType, got, ok := Split(frame)
		if len(frame) != size || !ok || etherType != TypePacket || !bytes.HasPrefix(got, []byte(body)) || frame[6]&3 != 2 {
			t.Errorf("frame of %d bytes: % x, want %d bytes from a local unicast address", len(body), frame, size)
		}
		for n := range etherHeader {
			if _, _, ok := Split(frame[:n]); ok {
				t.Errorf("%d bytes are accepted", n)
			}
		}
	}
	p := Packet{Global: true, Payload: make([]byte, MaxPayload)}
	if n := len(Frame(TypePacket, p.Append(nil))); n != MaxFrame {
		t.Errorf("the longest frame has %d bytes, want %d", n, MaxFrame)
	}
}

// The kernel module uses the same numbers.
func TestModuleAgrees(t *testing.T) {
	text, err := Source.ReadFile("ibwire.c")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int64{
		"ETH_P_WIRE_PACKET": TypePacket, "ETH_P_WIRE_CONTROL": TypeControl, "WIRE_PKEYS": PKeys, "WIRE_MAX_MTU": MaxPayload,
		"LRH_LEN": lrhLen, "GRH_LEN": grhLen, "BTH_LEN": bthLen, "DETH_LEN": dethLen, "ICRC_LEN": icrcLen,
		"LNH_MASK": lnhMask, "LNH_LOCAL": lnhLocal, "LNH_GLOBAL": lnhGlobal, "LRH_WORDS": lrhWords,
	} {
		m := regexp.MustCompile(`(?m)^#define ` + name + `\s+(\w+)`).FindSubmatch(text)
		if m == nil {
			t.Errorf("the module does not define %s", name)
			continue
		}
		if got, err := strconv.ParseInt(string(m[1]), 0, 64); err != nil || got != want {
			t.Errorf("%s is %s in the module, want %#x", name, m[1], want)
		}
	}
}
