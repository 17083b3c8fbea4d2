package mad_test

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"ipoibd/hca"
	"ipoibd/hca/mad"
)

// captured returns a capture of ERF records of type 21 (InfiniBand), each of a MAD from QP1 to QP1: LRH, BTH, DETH, the
// MAD, and zero CRCs.
func captured(mads [][]byte) []byte {
	file := binary.LittleEndian.AppendUint32(nil, 0xa1b2c3d4)
	file = binary.LittleEndian.AppendUint16(file, 2)
	file = binary.LittleEndian.AppendUint16(file, 4)
	file = append(file, make([]byte, 8)...)
	file = binary.LittleEndian.AppendUint32(file, 1<<16)
	file = binary.LittleEndian.AppendUint32(file, 197) // LINKTYPE_ERF
	for _, m := range mads {
		packet := []byte{0, 2, 0, 1, 0, 72, 0, 5}                      // LRH: BTH next, DLID 1, 72 words, SLID 5
		packet = append(packet, 0x64, 0, 0xff, 0xff, 0, 0, 0, 1)       // BTH: UD SEND, P_Key, QPN 1
		packet = append(packet, 0, 0, 0, 1, 0x80, 1, 0, 0, 0, 0, 0, 1) // PSN; DETH: Q_Key, QPN 1
		packet = append(append(packet, m...), 0, 0, 0, 0, 0, 0)
		record := make([]byte, 16, 16+len(packet))
		record[8], record[9] = 21, 4
		binary.BigEndian.PutUint16(record[10:], uint16(16+len(packet)))
		binary.BigEndian.PutUint16(record[14:], uint16(len(packet)))
		record = append(record, packet...)
		file = append(file, make([]byte, 8)...)
		file = binary.LittleEndian.AppendUint32(file, uint32(len(record)))
		file = binary.LittleEndian.AppendUint32(file, uint32(len(record)))
		file = append(file, record...)
	}
	return file
}

// tshark, which has a decoder of its own, reads from our encodings what we put into them.
func TestTsharkDecodesMADs(t *testing.T) {
	build := func(h mad.SA, put func([]byte)) []byte {
		buf := make([]byte, mad.Len)
		h.Put(buf)
		put(buf[mad.DataOffset:])
		return buf
	}
	member := mad.MCMember{
		MGID: hca.GID{0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 15: 7}, PortGID: hca.GID{0xfe, 0x80, 15: 9},
		QKey: 0x0b1b, MLID: 0xc123, PKey: 0x8001, MTU: mad.Selected[mad.MTUCode]{By: mad.SelectExactly, Value: 4},
		Rate:     mad.Selected[mad.Rate]{By: mad.SelectLess, Value: 7},
		Lifetime: mad.Selected[mad.TimeCode]{By: mad.SelectExactly, Value: 18},
		SL:       5, Routing: mad.Routing{Class: 0x21, FlowLabel: 0xabcde, HopLimit: 3},
		Scope: 2, JoinState: mad.JoinSendOnlyFull,
	}
	path := mad.Path{
		DGID: hca.GID{0xfe, 0x80, 15: 7}, SGID: hca.GID{0xfe, 0x80, 15: 9}, DLID: 0x102, SLID: 0x304,
		Routing: mad.Routing{Class: 0x21, FlowLabel: 0xabcde, HopLimit: 3}, Reversible: true, NumbPath: 1,
		PKey: 0x8001, SL: 5, Preference: 2, MTU: mad.Selected[mad.MTUCode]{By: mad.SelectExactly, Value: 4},
		Rate:     mad.Selected[mad.Rate]{By: mad.SelectLess, Value: 7},
		Lifetime: mad.Selected[mad.TimeCode]{By: mad.SelectExactly, Value: 18},
	}
	header := mad.NewRequest(mad.MethodSet, mad.AttrMCMemberRecord, 0x1122334455667788, mad.MaskJoin)
	answer := mad.NewRequest(mad.MethodGetResp, mad.AttrPathRecord, 2, mad.MaskPath)
	answer.Status = mad.StatusNoRecords

	name := filepath.Join(t.TempDir(), "mads.pcap")
	capture := captured([][]byte{build(header, member.Put), build(answer, path.Put)})
	if err := os.WriteFile(name, capture, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "/usr/bin/tshark", "-r", name, "-V")
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("tshark: %v (apt-get install tshark)", err)
	}
	var lines []string
	for line := range strings.Lines(string(out)) {
		lines = append(lines, strings.TrimSpace(line))
	}
	for n, all := range [][]string{1: {
		"Method: Set() (0x02)", "Transaction ID: 0x1122334455667788", "Attribute ID: 0x0038",
		"SA SubnAdmSet(MCMemberRecord)", "Component Mask: 0x00000000000173f7",
		"MGID: ff12:401b:ffff::7", "PortGID: fe80::9", "Q_Key: 0x00000b1b", "MLID: 0xc123",
		"0101 .... = SL: 0x5", "0010 .... = Scope: 0x2", ".... 1000 = JoinState: 0x8",

		"Method: GetResp() (0x81)", "Status: 0x0300",
		"SA SubnAdmGetResp(PathRecord)", "Component Mask: 0x000000000000340c",
		"DGID: fe80::7", "SGID: fe80::9", "DLID: 0x0102", "SLID: 0x0304", "1... .... = Reversible: 0x1",
		".000 0001 = NumbPath: 0x01", ".... .... .... 0101 = SL: 0x5", "Preference: 0x02",
	}, 2: {
		"10.. .... = MTUSelector: 0x2", "..00 0100 = MTU: 0x04", "01.. .... = RateSelector: 0x1", "..00 0111 = Rate: 0x07",
		"10.. .... = PacketLifeTimeSelector: 0x2", "..01 0010 = PacketLifeTime: 0x12", "TClass: 0x21", "P_Key: 0x8001",
		".... 1010 1011 1100 1101 1110 = FlowLabel: 0xabcde", "HopLimit: 0x03",
	}} {
		for _, want := range all {
			if got := strings.Count("\n"+strings.Join(lines, "\n")+"\n", "\n"+want+"\n"); got != n {
				t.Errorf("tshark says %q %d times, want %d", want, got, n)
			}
		}
	}
}
