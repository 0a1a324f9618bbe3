#pragma once

// The behaviour that every transport shares: one typed suite, instantiated per backend.

#include "tests/unit/transport/suite_delivery.h"
#include "tests/unit/transport/suite_endings.h"
#include "tests/unit/transport/suite_hostile.h"

namespace tandem::transport::testing {

REGISTER_TYPED_TEST_SUITE_P(
    TransportSuite, EveryFormatArrivesByteForByte, StatisticsCountHeadersPayloadsAndBf16Equivalents,
    LayersMayBePostedInPiecesAndAnyOrder, ATailAloneAndACommitAloneAreWholeTransfers,
    LargeLayersAreCutIntoFramesAndManyTransfersShareTheWire, OnlyTheUsedRowsOfAnOpenPageTravel,
    ALongQueueOfSmallFramesDrainsInConstantStack, TheSenderMayCancelInEveryPhase,
    TheReceiverMayCloseInEveryPhaseAndTheSenderLearnsIt, AfterCloseReceiveNoLateFrameWritesAByte,
    DeadlinesEndBothSidesOfASilentTransfer, AFailedPostReachesTheReceiverAsAnErrorFrame,
    PostsThatContradictTheSpecAreRefused, OpensAreCheckedAndBounded,
    AnotherKvLayoutFailsTheTransferOnBothSides, FramesOfAnotherGenerationAreDroppedAndCounted,
    AFencedSenderLosesItsTransfersAndCannotWriteAgain,
    AReadmittedSenderWritesNewTransfersAndNoOldOne, ReplayedFramesAreDroppedAndCounted,
    HostileFramesAreCountedAndChangeNothing, AFrameOutsideItsReservationFailsThatTransferOnly,
    ADeadReceiverFailsItsTransfersWithinASecond, AReceiverThatCameBackIsReachedAtItsNewAddress,
    APeerMayBeMetBeforeTheFirstTransfer, NamesWhatIsInUse);

}  // namespace tandem::transport::testing
