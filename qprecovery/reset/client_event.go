package reset

import "time"

// ClientEvent is one of [Connected], [Disconnected], [Heard], [WantReset],
// [Released], [Stop], [ClientTick].
type ClientEvent interface{ clientEvent() }

// Connected answers [Dial]: there is a connection to a host.
type Connected struct{}

// Disconnected says that a dial failed or the connection is gone; after [HangUp]
// it is not needed. A message of which only a part came is dropped with it.
type Disconnected struct{}

// Heard is a message of the host, whole and decoded.
type Heard struct{ Msg Message }

// WantReset asks for a reset of the device.
type WantReset struct{}

// Released answers [Release]: nothing of the device is held any more.
type Released struct{ Reset ID }

// Stop ends the client, which holds nothing of the device any more. Every later
// event is ignored.
type Stop struct{}

// ClientTick only lets time pass.
type ClientTick struct{}

func (Connected) clientEvent()    {}
func (Disconnected) clientEvent() {}
func (Heard) clientEvent()        {}
func (WantReset) clientEvent()    {}
func (Released) clientEvent()     {}
func (Stop) clientEvent()         {}
func (ClientTick) clientEvent()   {}

// ClientAction is one of [Dial], [HangUp], [Say], [Open], [Release], [Restart],
// [HostSilent], [HostAnswers].
type ClientAction interface{ clientAction() }

// Dial connects to the host; where there is none, this process becomes it and
// connects to itself. The shell answers Connected or Disconnected.
type Dial struct{}

// HangUp closes the connection, once what was said before is written.
type HangUp struct{}

// Say sends a message to the host.
type Say struct{ Msg Message }

// Open gives leave to open the device for the first time.
type Open struct{}

// Release tells of a reset: let go of the device, then report [Released]. Nothing
// of the device is opened before [Restart].
type Release struct{ Reset ID }

// Restart tells that the reset ended, and how: done, the device can be opened
// again; otherwise the rung has failed, with the outcome as its reason. It may
// come while the release is still under way; then the release is finished first.
type Restart struct{ Ended }

// HostSilent tells that the host owes an answer and has said nothing since; one
// that lives does not take that long. It changes nothing else: the client waits
// on, since nobody resets the device over the head of a process that may use it.
type HostSilent struct{ Since time.Time }

// HostAnswers tells that the host has spoken again.
type HostAnswers struct{}

func (Dial) clientAction()        {}
func (HangUp) clientAction()      {}
func (Say) clientAction()         {}
func (Open) clientAction()        {}
func (Release) clientAction()     {}
func (Restart) clientAction()     {}
func (HostSilent) clientAction()  {}
func (HostAnswers) clientAction() {}
