package daemon

import (
	"bytes"
	"log/slog"
	"net"
	"net/netip"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/hca"
	"ipoibd/hca/roce"
	"ipoibd/link/linktest/nstest"
)

// syncBuffer is a log that a test reads while it is written.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// Frames whose source address was translated on the way are dropped. The status names the
// cause, and so does the log, at most once a minute.
func TestNATIsNamed(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	underlay(t, "under0", 1)
	far := nstest.New(t)
	move(t, "under0-peer", far)
	far.Run("ip", "addr", "add", "192.0.2.2/24", "dev", "under0-peer")
	far.Run("ip", "link", "set", "under0-peer", "up")
	var log syncBuffer
	opts := options()
	opts.Log = slog.New(slog.NewTextHandler(&log, nil))
	r := start(t, configure(t, "ib0"), opts)

	const want = "datagrams from 192.0.2.2 are dropped: their ICRC matches source address 10.1.1.7, so a NAT"
	r.eventually("the status names the NAT", func() bool {
		sendTranslated(t, far, "10.1.1.7")
		s, err := control.GetStatus(t.Context(), r.cfg.Control)
		must(t, err)
		return strings.HasPrefix(s.Devices[0].Notice, want)
	})
	time.Sleep(2 * time.Second)
	r.eventually("the status names the next one", func() bool {
		sendTranslated(t, far, "10.1.1.8")
		s, err := control.GetStatus(t.Context(), r.cfg.Control)
		must(t, err)
		return strings.HasPrefix(s.Devices[0].Notice, strings.Replace(want, "1.7", "1.8", 1))
	})
	time.Sleep(2 * time.Second)
	logged := regexp.MustCompile(`msg="[^"]*NAT[^"]*".*`).FindAllString(log.String(), -1)
	if len(logged) != 1 || !strings.Contains(logged[0], "from=192.0.2.2 icrc_of=10.1.1.7") {
		t.Errorf("logged %q, want the first one only: anyone can forge another one each second", logged)
	}
	r.stop()
}

// sendTranslated sends two frames of a host at inside, as a NAT at 192.0.2.2
// forwards them: it changes the source address and knows of no ICRC.
func sendTranslated(t *testing.T, nat *nstest.Namespace, inside string) {
	t.Helper()
	var conn *net.UDPConn
	var err error
	nat.Do(func() {
		conn, err = net.DialUDP("udp4", nil, &net.UDPAddr{IP: net.IPv4(192, 0, 2, 1), Port: roce.Port})
	})
	must(t, err)
	defer conn.Close()
	path := roce.Path{
		Src: netip.MustParseAddr(inside), Dst: netip.MustParseAddr("192.0.2.1"),
		SrcPort: conn.LocalAddr().(*net.UDPAddr).AddrPort().Port(),
	}
	for n := range byte(2) {
		b := make([]byte, roce.HeaderLen+4+roce.ICRCLen)
		(&roce.BTH{Opcode: roce.OpcodeUDSendOnly, PKey: hca.PKeyDefault, DestQPN: 0x1234}).Put(b)
		(&roce.DETH{QKey: 0x0b1b, SrcQPN: 0x4321}).Put(b[roce.BTHLen:])
		b[roce.HeaderLen] = n
		end := len(b) - roce.ICRCLen
		roce.PutICRC(b[end:], roce.ICRC(&path, b[:end]))
		_, _ = conn.Write(b) // refused while the device is being opened: it is sent again
	}
}
