package launch

import (
	"bufio"
	"context"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
)

// A head bears the silence of a launcher that the user has stopped, for as long as it takes, and no other.
func TestHeadBearsAStoppedLauncher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		launcher := &headPipe{w: w}
		signals := make(chan os.Signal, 8)
		ctx, gone := context.WithCancelCause(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			(&headPipe{r: bufio.NewReader(r)}).obey(signals, nil, nil, gone)
		}()
		say := func(m *pb.ToHead) {
			if err := launcher.sendTo(m); err != nil {
				t.Error(err)
			}
			synctest.Wait()
		}
		sign := func(s syscall.Signal) { say(&pb.ToHead{Kind: &pb.ToHead_Signal{Signal: int32(s)}}) }
		sign(syscall.SIGTSTP)
		say(&pb.ToHead{Kind: &pb.ToHead_Heartbeat{Heartbeat: &pb.Heartbeat{}}}) // before it stops
		time.Sleep(10 * headSilence)
		if ctx.Err() != nil {
			t.Errorf("while it was stopped: %v", context.Cause(ctx))
		}
		sign(syscall.SIGCONT)
		time.Sleep(headSilence / 2)
		if ctx.Err() != nil {
			t.Errorf("when it went on: %v", context.Cause(ctx))
		}
		time.Sleep(headSilence)
		if err := context.Cause(ctx); err == nil || !strings.Contains(err.Error(), "said nothing for 4.5s") {
			t.Errorf("after %v without a word: %v", headSilence*3/2, err)
		}
		if len(signals) != 2 {
			t.Errorf("%d signals were passed on, want 2", len(signals))
		}
		_ = w.Close()
		<-ended
	})
}
