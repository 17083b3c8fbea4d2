package report

import (
	"strings"
	"testing"
	"time"

	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/hca"
	"ipoibd/qprecovery"
)

func at(ms int) time.Time { return time.Unix(1e9, 0).Add(time.Duration(ms) * time.Millisecond) }

// ended is the record of a recovery that took 15 ms and a device 21 ms of service.
func ended() qprecovery.Record {
	reason := qprecovery.ReasonQPError
	return qprecovery.Record{
		Reason: reason, Since: at(4), Start: at(10), End: at(25),
		Steps: []qprecovery.Step{{Rung: qprecovery.RungRecreateQP, Reason: reason, At: at(10)}, {Rung: qprecovery.RungResumeQP, Reason: reason, At: at(11)}},
	}
}

func TestR29EndTellsDurationOutageReasonAndRequest(t *testing.T) {
	r := ended()
	r.Omitted = 3
	r.Request = &qprecovery.Request{
		Status: hca.WCLocProtErr, Opcode: hca.WCSend, WRID: 0x1f, VendorErr: 7,
		SGList: []hca.SGE{{Length: 58, LKey: 0xa}, {Length: 1400, LKey: 0xb}}, DestQPN: 0x22,
	}
	want := journal.Entry{
		Time: at(25), Scope: "ib0", Kind: journal.KindRecovered, Rung: "recreate_qp", Reason: "qp_error",
		Text:     hca.WCLocProtErr.String() + " of a send, wr_id 0x1f, vendor error 0x7, 58 bytes lkey 0xa, 1400 bytes lkey 0xb, to QP 0x000022; 3 more steps",
		Duration: journal.Seconds(15 * time.Millisecond), Outage: journal.Seconds(21 * time.Millisecond),
	}
	if got := Ended("ib0", qprecovery.Ended{Record: r}); got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestStoppedIsNotRecovered(t *testing.T) {
	r := ended()
	r.Stopped = true
	if got := Ended("ib0", qprecovery.Ended{Record: r}); got.Kind != journal.KindStopped || got.Rung != "recreate_qp" {
		t.Errorf("%+v", got)
	}
}

func TestBlameOfAReceive(t *testing.T) {
	got := blame(qprecovery.Request{Status: hca.WCLocLenErr, Opcode: hca.WCRecv})
	if !strings.Contains(got, " of a receive") || strings.Contains(got, "to QP") {
		t.Error(got)
	}
}
