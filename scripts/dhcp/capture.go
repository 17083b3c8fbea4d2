package dhcp

import (
	"encoding/hex"
	"os/exec"
	"strings"
	"testing"
)

// Message is one in a capture, as tshark sees it.
type Message struct {
	Payload         []byte // that of the UDP datagram
	CIAddr          string // the address that the client has
	BroadcastWanted bool   // by the flag
	ChecksumRight   bool   // of UDP
}

// The op of a message (RFC 2131 section 2).
const (
	Request = "1" // of a client
	Reply   = "2" // of a server
)

// Messages returns the messages with an op in a capture, by transaction, type and seconds.
func Messages(t *testing.T, path, op string) map[string]Message {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "tshark", "-n", "-r", path, "-Y", "dhcp.type == "+op, "-o", "udp.check_checksum:TRUE", "-T", "fields",
		"-e", "dhcp.id", "-e", "dhcp.option.dhcp", "-e", "dhcp.secs", "-e", "udp.payload", "-e", "dhcp.ip.client", "-e", "dhcp.flags.bc", "-e", "udp.checksum.status")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v", cmd, err)
	}
	found := map[string]Message{}
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) != 7 {
			t.Fatalf("tshark printed %q", line)
		}
		payload, err := hex.DecodeString(f[3])
		if err != nil || len(payload) < 240 {
			t.Fatalf("payload %q: %v", f[3], err)
		}
		found[strings.Join(f[:3], " ")] = Message{payload, f[4], f[5] == "1" || f[5] == "True", f[6] == "1"}
	}
	return found
}
