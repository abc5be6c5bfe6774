//! Tests from inside the module: changed sealed memory is detected.

use super::*;

const MIB: usize = 1 << 20;

fn manager() -> VramManager {
    let context = CudaContext::host().expect("the host backend is always there");
    let config = VramConfig::new([7; 32]).worker_id("worker");
    VramManager::with_context(context, config).expect("a manager")
}

fn bytes_in<'a>(manager: &'a mut VramManager, shard: &SealedShard) -> &'a mut Sealed {
    match manager.sealed.get_mut(&shard.shard_id) {
        Some(Held::Bytes(sealed)) => Arc::get_mut(sealed).unwrap(),
        _ => panic!("no bytes"),
    }
}

fn flip(manager: &mut VramManager, shard: &SealedShard, bit: usize) {
    let memory = &mut bytes_in(manager, shard).memory;
    let byte = memory.read_at(bit / 8, 1).unwrap()[0];
    memory.write_at(bit / 8, &[byte ^ 1 << (bit % 8)]).unwrap();
}

fn bad_mib(result: VramResult<()>) -> Option<u64> {
    match result {
        Err(VramError::SealVerificationFailed { first_bad_mib }) => first_bad_mib,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_flipped_bit_of_memory_is_found() {
    let mut manager = manager();
    let shard = manager.seal_model(b"all that is sealed", 0).unwrap();
    for bit in 0..18 * 8 {
        flip(&mut manager, &shard, bit);
        assert_eq!(bad_mib(manager.verify_sealed(&shard)), Some(0), "bit {bit}");
        flip(&mut manager, &shard, bit);
        manager.verify_sealed(&shard).unwrap();
    }
}

#[test]
fn the_first_bad_mib_is_named_and_ranges_see_only_their_own() {
    let mut manager = manager();
    let bytes: Vec<u8> = (0..5 * MIB + 77).map(|i| ((i * 31) >> 3) as u8).collect();
    let shard = manager.seal_model(&bytes, 0).unwrap();
    let size = bytes.len() as u64;
    for byte in [0, MIB - 1, MIB, 3 * MIB + 5, 5 * MIB, 5 * MIB + 76] {
        flip(&mut manager, &shard, byte * 8 + 3);
        let mib = (byte / MIB) as u64;
        assert_eq!(bad_mib(manager.verify_sealed(&shard)), Some(mib));
        assert_eq!(bad_mib(manager.verify_range(&shard, 0, size)), Some(mib));
        let touched = manager.verify_range(&shard, byte as u64, 1);
        assert_eq!(bad_mib(touched), Some(mib), "byte {byte}");
        let start = mib * MIB as u64;
        manager.verify_range(&shard, 0, start).unwrap();
        let after = (start + MIB as u64).min(size);
        manager.verify_range(&shard, after, size - after).unwrap();
        flip(&mut manager, &shard, byte * 8 + 3);
    }
    flip(&mut manager, &shard, 8 * (2 * MIB + 1));
    flip(&mut manager, &shard, 8 * (4 * MIB + 1));
    assert_eq!(bad_mib(manager.verify_sealed(&shard)), Some(2));
}

#[test]
fn a_mismatch_is_reported_with_both_digests_and_flushed() {
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<(Vec<AuditEvent>, usize)>>);
    impl AuditSink for Kept {
        fn emit(&mut self, record: &AuditRecord) -> Result<(), super::super::AuditError> {
            self.0.lock().unwrap().0.push(record.event.clone());
            Ok(())
        }
        fn flush(&mut self) -> Result<(), super::super::AuditError> {
            self.0.lock().unwrap().1 += 1;
            Ok(())
        }
    }

    let kept = Kept::default();
    let mut manager = manager().audit_to(kept.clone());
    let shard = manager.seal_model(b"abc", 0).unwrap();
    flip(&mut manager, &shard, 0);
    manager.verify_sealed(&shard).unwrap_err();
    let (events, flushes) = kept.0.lock().unwrap().clone();
    let expected = AuditEvent::SealVerificationFailed {
        shard_id: shard.shard_id.clone(),
        reason: "seal verification failed: MiB 0 is not what was sealed".into(),
        expected_digest: shard.digest.clone(),
        actual_digest: blake3::hash(b"`bc").to_hex().to_string(),
        severity: Severity::Critical,
    };
    assert_eq!(events.last(), Some(&expected));
    assert_eq!(flushes, 1);
}

#[test]
fn memory_that_leaves_the_device_is_a_policy_violation_before_its_digest_is_asked() {
    let mut manager = manager();
    let shard = manager.seal_model(b"abc", 0).unwrap();
    let mut foreign = *b"abc"; // the same bytes, in the wrong place
    let context = CudaContext::host().unwrap(); // the manager's own refuses it
    // SAFETY: `foreign` outlives the manager's use of it, and only the buffer uses it.
    let borrowed = unsafe { context.borrow_memory(foreign.as_mut_ptr(), 3, "foreign") }.unwrap();
    bytes_in(&mut manager, &shard).memory = borrowed;

    let error = manager.verify_sealed(&shard).unwrap_err();

    assert!(matches!(error, VramError::PolicyViolation(_)), "{error:?}");
    assert!(error.is_fatal() && error.to_string().contains("host memory"));
    manager.deallocate(&shard).unwrap();
    assert_eq!(&foreign, b"abc");
}

#[test]
fn chaining_values_of_the_manager_give_the_signed_digest() {
    let mut manager = manager();
    let shard = manager.seal_model(&vec![3; 2 * MIB + 1], 0).unwrap();
    let sealed = bytes_in(&mut manager, &shard);
    assert_eq!(sealed.pieces.len(), 3);
    assert_eq!(join_digest_pieces(&sealed.pieces).unwrap(), sealed.digest);
    assert_eq!(hex(&sealed.digest), shard.digest);
}

#[test]
fn tampered_bytes_are_not_read_back_or_loaded() {
    use crate::llm::gguf::ReadAt;

    let mut manager = manager();
    let bytes = vec![7u8; 2 * MIB + 5];
    let shard = manager.seal_model(&bytes, 0).unwrap();
    let reader = manager.reader(&shard).unwrap();
    let mut target = [0; 10];
    reader.read_exact_at(&mut target, MIB as u64).unwrap();
    assert_eq!(target, [7; 10]);

    drop(reader); // `flip` needs the memory for itself
    flip(&mut manager, &shard, 8 * (MIB + 3));

    let reader = manager.reader(&shard).unwrap();
    assert_eq!(
        bad_mib(manager.read(&shard, MIB as u64 + 100, 1).map(drop)),
        Some(1)
    );
    manager.read(&shard, 0, MIB as u64).unwrap();
    manager.check_sealed(&shard).unwrap(); // reads no memory
    let mut target = [9; 10];
    let error = reader
        .read_exact_at(&mut target, 2 * MIB as u64 - 5)
        .unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
    assert_eq!(target, [9; 10]);
    reader
        .read_exact_at(&mut target[..5], 2 * MIB as u64)
        .unwrap();
}
